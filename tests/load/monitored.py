"""A small load on a server of its own, watched as in production: does every panel and alert say something true?

    .venv/bin/python -m tests.load.monitored [--out load-report]

Starts the built-in model on the CPU, and Prometheus with the repository's configuration where that program is
installed. Sends open-loop load with `foveal bench serve`, a few requests that must fail, then asks every query of the
dashboard and every alert's expression. Writes report.html and JSON; exit code 1 when anything is not as it should be.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

import httpx

from foveal.bench.serve.pictures import synthetic
from foveal.demo.server import serving
from foveal.files import write_text
from tests.load.expressions import Finding, asked, of_alerts, of_dashboards, of_exemplars, of_metrics
from tests.load.page import write_page
from tests.load.prometheus import SCRAPE_SECONDS, Prometheus, watching

SERVER_FLAGS = ("--device", "cpu", "--cpu-threads", "1", "--prep-workers", "1", "--log-level", "warning")
LOAD_FLAGS = ("--size", "256x256", "--duplicates", "0.2", "--max-error-share", "0", "--processes", "1")
SETTLE_SECONDS = 4 * SCRAPE_SECONDS
BAD_REQUESTS = {"not a picture": b"hello", "a damaged picture": synthetic(64, 64, 0)[:200], "nothing": b""}


def fail_on_purpose(url: str) -> None:
    """Requests that must be refused, so that the panels of failures have something to show."""
    with httpx.Client(base_url=url, trust_env=False) as http:
        for what, body in BAD_REQUESTS.items():
            answer = http.post("/encode", content=body, headers={"Content-Type": "image/jpeg"})
            assert 400 <= answer.status_code < 500, f"{what}: {answer.status_code} {answer.text}"


def load(url: str, out: Path, args: argparse.Namespace) -> int:
    """The load test's exit code."""
    command = [sys.executable, "-m", "foveal", "bench", "serve", "--url", url, "--wait-ready-seconds", "120"]
    command += ["--rates", args.rates, "--seconds", str(args.seconds), *LOAD_FLAGS]
    return subprocess.run([*command, "--json", out / "load.json", "--plot", out / "load.png"]).returncode


def look(prometheus: Prometheus) -> list[Finding]:
    """Every expression there is."""
    expressions = (*of_dashboards(), *of_alerts(), *of_metrics())
    return [*(asked(prometheus, expression) for expression in expressions), of_exemplars(prometheus)]


def told(findings: Iterable[Finding]) -> bool:
    """Print what is wrong; True if nothing is."""
    wrong = [finding for finding in findings if not finding.is_good]
    for finding in wrong:
        print(f"{finding.where}: {finding.verdict}\n    {finding.text}")
    return not wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("load-report"))
    parser.add_argument("--rates", default="3,6")
    parser.add_argument("--seconds", type=float, default=12)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    findings: list[Finding] | None = None
    with serving(SERVER_FLAGS) as url, watching(url.removeprefix("http://")) as prometheus:
        is_held = load(url, args.out, args) == 0
        fail_on_purpose(url)
        if prometheus is not None:
            time.sleep(SETTLE_SECONDS)
            findings = look(prometheus)
    if findings is None:
        print("Prometheus is missing: no query was asked (on Debian: apt-get install prometheus)")
    write_text(args.out / "queries.json", json.dumps([asdict(f) for f in findings or ()], indent=1))
    write_page(args.out, findings)
    are_good = told(findings or ())
    if findings is not None:
        good = sum(finding.is_good for finding in findings)
        print(f"{good} of {len(findings)} expressions say what they should")
    print(f"report: {args.out / 'report.html'}")
    return int(not (is_held and are_good))


if __name__ == "__main__":
    sys.exit(main())
