"""Hours of ordinary and unkind traffic: memory, descriptors, threads and shared memory must level.

`python -m tests.chaos.soak --seconds 3600`. Samples the server and its children; the second half is compared with
the first. Exit code 1 if something grows.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.flood import rss_mib
from tests.chaos.pictures import gallery, marked
from tests.chaos.wire import Caller
from tests.system.conftest import REAL, Running, children_of, serving

FAKE = ("tests.chaos.serve",)
SAMPLE_SECONDS = 5.0
ALLOWED_GROWTH = 1.05
FLAGS = ("--cpu-workers", "1", "--prep-workers", "1", "--cache-bytes", "16MiB", "--max-inflight-bytes", "128MiB")


@dataclass(frozen=True)
class Sample:
    """What the server holds at one moment."""

    api_mib: float
    children_mib: float
    descriptors: int
    threads: int
    arenas_mib: float


def sample(running: Running) -> Sample:
    """Look from outside, and at its own gauge of shared memory."""
    pid = running.process.pid
    return Sample(
        rss_mib(pid),
        sum(rss_mib(child) for child in children_of(pid)),
        len(list(Path(f"/proc/{pid}/fd").iterdir())),
        len(list(Path(f"/proc/{pid}/task").iterdir())),
        running.metric("foveal_arena_bytes") / (1 << 20),
    )


async def soak(running: Running, seconds: float, callers: int = 6) -> list[Sample]:
    """Traffic for so long, and what was seen meanwhile; raises AssertionError for a call that should not fail."""
    pictures, end = gallery(40, seed=5), time.monotonic() + seconds
    jobs = [asyncio.create_task(_one_caller(running, pictures, i, end)) for i in range(callers)]
    samples: list[Sample] = []
    while time.monotonic() < end:
        await asyncio.sleep(SAMPLE_SECONDS)
        samples.append(await asyncio.to_thread(sample, running))
    print("calls:", sum(await asyncio.gather(*jobs)))
    await asyncio.to_thread(running.until, running.is_empty)
    return samples


async def _one_caller(running: Running, pictures: list[bytes], seed: int, end: float) -> int:
    caller, chance, calls = Caller(running.url), random.Random(seed), 0
    while time.monotonic() < end:
        calls += 1
        picture = chance.choice(pictures)
        if chance.random() < 0.7:
            picture = marked(picture, seed * 10**9 + calls)
        kind = chance.random()
        if kind < 0.05:
            await caller.encode(picture, leave_after=chance.uniform(0, 0.03))
        elif kind < 0.1:
            assert (await caller.encode(picture[: len(picture) // 2])).status in (415, 422)
        else:
            reply = await caller.encode(picture)
            assert reply.status == 200, (reply.status, reply.body[:300])
    caller.leave()
    return calls


def grown(samples: list[Sample]) -> dict[str, tuple[float, float]]:
    """Of each number: its mean in the third quarter and in the last, after the first half has warmed everything."""
    quarter = len(samples) // 4
    third, last = samples[2 * quarter : 3 * quarter], samples[3 * quarter :]
    return {
        name: (_mean([getattr(s, name) for s in third]), _mean([getattr(s, name) for s in last]))
        for name in Sample.__dataclass_fields__
    }


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def main() -> int:
    """Soak; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--fake", action="store_true", help="with the fake worker")
    args = parser.parse_args()
    with serving(*FLAGS, program=FAKE if args.fake else REAL) as running:
        samples = asyncio.run(soak(running, max(args.seconds, 8 * SAMPLE_SECONDS)))
    failed = 0
    print(f"{'':16}{'third quarter':>14}{'last':>10}")
    for name, (before, after) in grown(samples).items():
        is_flat = after <= before * ALLOWED_GROWTH + 1
        failed += not is_flat
        print(f"{name:16}{before:14.1f}{after:10.1f}{'' if is_flat else '  GROWS'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
