"""`make chaos`: the scenarios at length, with the fake worker and with the real one, and what was measured.

Exit code 1 if a promise of docs/reliability.md was not kept. Figures hold for the machine that they were taken on.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

from tests.chaos import large, stopped
from tests.chaos.fair import fair
from tests.chaos.flood import FLAGS, PACK_MS, flood, p99
from tests.chaos.machine import going_first
from tests.chaos.newcomers import newcomers
from tests.chaos.overload import FLAGS as REAL_FLAGS
from tests.chaos.overload import overload
from tests.chaos.pictures import gallery
from tests.chaos.rolling import rolling_restart
from tests.chaos.storm import Weather, in_calm, storm
from tests.system.conftest import REAL, Running, serving, start

FAKE = ("tests.chaos.serve",)
STORM_FLAGS = ("--cpu-workers", "2", "--prep-workers", "1", "--worker-timeout-seconds", "1", "--cache-bytes", "2MiB")
REAL_SHARE = 10
"""The real worker gets this part of the requests: a start takes it seconds."""

OVERLOAD_ROUNDS, OVERLOAD_SHARE = 4, 0.9
Row = tuple[str, str, bool]


def run_storm(program: tuple[str, ...], requests: int, kills: int) -> list[Row]:
    """Requests at random while workers die."""
    pictures = gallery(120, seed=7)
    with serving(*STORM_FLAGS, program=program, variables={"CHAOS_PACK_MS": "5"}) as running:
        weather = Weather(running, pictures, asyncio.run(in_calm(running.url, pictures)), random.Random(7))
        began = time.monotonic()
        asyncio.run(storm(weather, requests, callers=32, kill_every=max(requests // (kills + 1), 1)))
        seconds = time.monotonic() - began
        running.until(running.is_empty)
    seen = ", ".join(f"{name} {number}" for name, number in weather.seen.most_common())
    return [
        ("requests", f"{requests} in {seconds:.0f} s: {seen}", True),
        ("workers killed", str(weather.kills), weather.kills > 0),
    ]


@contextlib.contextmanager
def small(first: bool, *flags: str) -> Iterator[Running]:
    """A server that is soon full, with its share of the processors or before other jobs of this machine."""
    with (
        serving(*FLAGS, *flags, program=FAKE, variables={"CHAOS_PACK_MS": PACK_MS}) as running,
        going_first(running) if first else contextlib.nullcontext(),
    ):
        yield running


def run_flood(seconds: float, first: bool) -> list[Row]:
    """Three times what the server can do."""
    with small(first) as running:
        found = asyncio.run(flood(running, seconds, times=3.0))
        running.until(running.is_empty)
    share, refused, live = found.goodput / found.peak, p99(found.refused), p99(found.live)
    return [
        ("peak, images/s", f"{found.peak:.1f}", True),
        ("offered, images/s", f"{found.offered:.0f}", True),
        ("goodput / peak", f"{share:.3f}", share >= 0.95),
        ("refusals", str(len(found.refused)), True),
        ("refusal p99, ms", f"{refused * 1000:.1f}", refused < 0.010),
        ("  of that inside the server", f"{p99(found.refused_inside) * 1000:.1f}", True),
        ("  read later by the sender", f"{p99(found.late) * 1000:.1f} (not counted)", True),
        ("refusal p50, ms", f"{statistics.median(found.refused) * 1000:.1f}", True),
        ("a processor was lacking", f"{found.pressure:.0%} of the time", True),
        ("/live p99, ms", f"{live * 1000:.1f}", live < 0.050),
        ("api CPU, ms/request", f"{found.cpu_ms:.2f}", True),
        ("normal again after, s", f"{found.normal_after:.2f}", found.normal_after < 2),
        (
            "RSS before and after, MiB",
            "{:.0f}, {:.0f}".format(*found.rss_mib),
            found.rss_mib[1] < found.rss_mib[0] + 64,
        ),
        ("other answers", str(found.others[:5]), not found.others),
    ]


def run_overload(seconds: float, first: bool) -> list[Row]:
    """Three times what a worker can do that computes, with the processors that all others want too."""
    with serving(*REAL_FLAGS) as running, going_first(running) if first else contextlib.nullcontext():
        found = asyncio.run(overload(running, OVERLOAD_ROUNDS, seconds / OVERLOAD_ROUNDS, times=3.0))
        running.until(running.is_empty)
    rounds = ", ".join(f"{over:.1f} of {calm:.1f}" for over, calm in zip(found.goodput, found.calm, strict=True))
    right, refused, late = (found.outcomes[name] for name in ("200", "overloaded", "deadline_exceeded"))
    return [
        ("goodput of the calm rate, images/s", rounds, True),
        ("goodput / calm", f"{found.share:.3f}", found.share >= OVERLOAD_SHARE),
        ("right, refused, late", f"{right}, {refused}, {late}", True),
        (
            "refusal p50, p99, ms",
            f"{statistics.median(found.refused or [0.0]) * 1000:.1f}, {p99(found.refused) * 1000:.1f}",
            True,
        ),
        ("other answers", str(found.others), not found.others),
    ]


def run_newcomers(seconds: float, first: bool) -> list[Row]:
    """New connections beside a crowd that keeps the loop busy."""
    with small(first) as running:
        times, rate = asyncio.run(newcomers(running, seconds))
    return [
        ("busy ones, calls/s", f"{rate:.0f}", True),
        ("newcomers p50, p99, ms", f"{statistics.median(times) * 1000:.0f}, {p99(times) * 1000:.0f}", True),
    ]


def run_fair(seconds: float, first: bool) -> list[Row]:
    """One caller beside a crowd of another's."""
    with small(first, "--api-key", "bulk", "--api-key", "single") as running:
        alone, beside, refused = asyncio.run(fair(running, seconds))
    extra = p99(beside) - p99(alone)
    bound = 3 * float(PACK_MS) / 1000
    return [
        ("alone p99, ms", f"{p99(alone) * 1000:.0f}", True),
        ("beside a crowd p99, ms", f"{p99(beside) * 1000:.0f}", extra < bound),
        ("refused", str(refused), refused == 0),
    ]


def run_stopped() -> list[Row]:
    """A worker that is stopped (SIGSTOP) with packs in hand."""
    with serving(*stopped.FLAGS) as running:
        found = asyncio.run(stopped.stopped(running))
    right = sum(reply.status == 200 for reply in found.replies)
    noticed = f"{found.not_up:.1f}, {found.restarted:.1f}"
    return [
        ("not up, ended after, s", noticed, found.restarted < stopped.NOTICED_SECONDS),
        ("last caller answered, s", f"{found.answered:.1f}", True),
        ("right answers", f"{right} of {len(found.replies)}", right == len(found.replies)),
    ]


def run_large(side: int) -> list[Row]:
    """Pictures that are too large for a CPU, and the small ones of others."""
    with serving(*large.FLAGS) as running:
        found = asyncio.run(large.large(running, side))
    small = sum(found.after.values())
    return [
        (f"{side} x {side} alone, s", f"{found.alone.seconds:.1f} {found.alone.code or found.alone.status}", True),
        ("small behind it, s", f"{found.behind.seconds:.1f} {found.behind.code}", found.behind.status == 200),
        ("  whose caller left, s", f"{found.left.seconds:.1f} {found.left.code}", found.left.status == 200),
        (f"{large.CROWD} at once", str(dict(found.flood)), True),
        ("small ones beside them", str(dict(found.beside)), True),
        ("  slowest right one, s", f"{found.slowest:.1f}", True),
        ("small ones afterwards", str(dict(found.after)), found.after["200"] == small),
    ]


def run_rolling(program: tuple[str, ...], rounds: int) -> list[Row]:
    """Restarts under load behind the SDK."""
    seen = rolling_restart(program, ("--prep-workers", "1"), rounds)
    return [(f"calls in {2 * rounds} restarts", f"{dict(seen)}", set(seen) == {"calls"})]


def run_four_at_once() -> list[Row]:
    """Four instances on one machine."""
    with ThreadPoolExecutor(4) as pool:
        all_ = list(pool.map(lambda _: start("--prep-workers", "1", program=FAKE), range(4)))
    try:
        for running in all_:
            running.wait_ready()
    finally:
        for running in all_:
            running.process.terminate()
        ended = [running.process.wait(30) for running in all_]
    return [("exit codes", str(ended), ended == [0] * 4), ("ports", "all different", len({r.url for r in all_}) == 4)]


def main() -> int:
    """Run all; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=10_000, help="of the storm")
    parser.add_argument("--seconds", type=float, default=20.0, help="of the flood and of the crowd")
    parser.add_argument(
        "--first", action="store_true", help="flood, newcomers and crowd run before other jobs of this machine (root)"
    )
    parser.add_argument("--side", type=int, default=3000, help="pixels of a large picture's side")
    parser.add_argument("--only", default="", help="scenarios whose name begins so")
    args = parser.parse_args()
    scenarios: dict[str, Callable[[], list[Row]]] = {
        "storm, fake worker": lambda: run_storm(FAKE, args.requests, 20),
        "flood, fake worker": lambda: run_flood(args.seconds, args.first),
        "overload, real worker": lambda: run_overload(args.seconds, args.first),
        "newcomers, fake worker": lambda: run_newcomers(args.seconds / 2, args.first),
        "crowd, fake worker": lambda: run_fair(args.seconds, args.first),
        "stopped worker": run_stopped,
        "large pictures": lambda: run_large(args.side),
        "four at once": run_four_at_once,
        "rolling restart, fake worker": lambda: run_rolling(FAKE, 2),
        "storm, real worker": lambda: run_storm(REAL, args.requests // REAL_SHARE, 3),
    }
    kept = True
    for name, run in ((name, run) for name, run in scenarios.items() if name.startswith(args.only)):
        print(f"\n{name}", flush=True)
        for what, value, is_kept in run():
            kept &= is_kept
            print(f"  {what:28} {value}{'' if is_kept else '   NOT KEPT'}", flush=True)
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
