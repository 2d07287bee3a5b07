"""Spoiled files of every format against the prep program: `make fuzz`, or

    .venv/bin/python -m tests.fuzz [--count 50000] [--through 5000] [--seed 0] [--first 0]

Most inputs meet the answer function in worker processes of this program, which note files, sockets and memory; some
go through real prep processes. An input is its seed and its number: a finding is made again with --first and --count.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections import Counter

from tqdm import tqdm

from tests.fuzz.inside import Finding
from tests.fuzz.through import Through
from tests.fuzz.workers import run_inside


def run_through(seed: int, first: int, count: int) -> tuple[Counter[str], list[str]]:
    """The same through real prep processes."""
    with tqdm(total=count, desc="through children", unit=" inputs") as bar:
        try:
            return asyncio.run(Through(seed).run(range(first, first + count), bar.update)), []
        except ExceptionGroup as group:
            found, others = group.split(Finding)
            if others or found is None:
                raise
            return Counter(), [str(error) for error in found.exceptions]


def main() -> int:
    """The exit code: 1 when something was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=50_000, help="inputs for the answer function")
    parser.add_argument("--through", type=int, default=5_000, help="inputs through real prep processes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first input")
    args = parser.parse_args()
    findings: list[str] = []
    for name, run, count in (("in the program", run_inside, args.count), ("through", run_through, args.through)):
        if count:
            answers, found = run(args.seed, args.first, count)
            findings += found
            print(f"{name}: {answers.total()} inputs of seed {args.seed}")
            for code, number in answers.most_common():
                print(f"  {code:20} {number:8}")
    for finding in findings:
        print(f"FOUND: {finding} (seed {args.seed})")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
