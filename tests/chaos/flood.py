"""More than the server can do: what it still does, how quickly it says no, and how soon all is as before."""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from tests.chaos.pictures import marked
from tests.chaos.wire import Caller, Reply
from tests.system.conftest import Running
from tests.system.test_encode import noise

PROBE_SECONDS = 0.05
FLAGS = (
    *("--prep-workers", "1", "--cache-bytes", "0", "--token-budgets", "64,256", "--max-items-per-pack", "4"),
    *("--max-image-tokens", "256", "--max-queue-tokens", "2048"),
)
PACK_MS = "40"
NOMINAL = 100.0
"""Images a second, with packs of four."""


@dataclass
class Flooded:
    """What was measured. Times in seconds."""

    peak: float = 0.0
    goodput: float = 0.0
    offered: float = 0.0
    refused: list[float] = field(default_factory=list)
    """Of each refusal, from before it was sent until the kernel had the answer."""
    refused_inside: list[float] = field(default_factory=list)
    """The same, inside the server: from the first byte that it parsed until the answer was written."""
    late: list[float] = field(default_factory=list)
    """How much later the sender read each refusal."""
    live: list[float] = field(default_factory=list)
    normal_after: float = 0.0
    cpu_ms: float = 0.0
    """The api process's own time for one offered request, whoever else uses the machine."""
    rss_mib: tuple[float, float] = (0.0, 0.0)
    pressure: float = 0.0
    """Part of the flood's time in which some process of this machine waited for a processor."""
    others: list[str] = field(default_factory=list)


def p99(values: list[float]) -> float:
    """The 99th percentile."""
    return sorted(values)[int(len(values) * 0.99)] if values else 0.0


async def flood(running: Running, seconds: float, times: float) -> Flooded:
    """Measure the peak in calm, flood at so many times that, wait for calm."""
    numbers, picture, found = count(), noise(50, 50, 1), Flooded()
    alone = await _median_alone(running, picture, numbers)
    found.peak = await _peak(running, picture, numbers, seconds)
    before, spent, line = rss_mib(running.process.pid), cpu_seconds(running.process.pid), len(running.lines)
    waited = pressure_seconds()
    prober = asyncio.create_task(_probe_live(running, found.live))
    replies = await _offer(running, picture, numbers, max(found.peak, NOMINAL) * times, seconds)
    prober.cancel()
    found.rss_mib = before, rss_mib(running.process.pid)
    found.cpu_ms = (cpu_seconds(running.process.pid) - spent) / len(replies) * 1000
    found.offered = len(replies) / seconds
    found.goodput = sum(reply.status == 200 for reply in replies) / seconds
    refusals = [reply for reply in replies if reply.code == "overloaded"]
    found.refused, found.late = [r.seconds for r in refusals], [r.late for r in refusals]
    found.others = [reply.code or str(reply.status) for reply in replies if reply.status not in (200, 503)]
    found.pressure = (pressure_seconds() - waited) / seconds
    found.normal_after = await _normal_after(running, picture, numbers, alone)
    found.refused_inside = _refusals_in_log(running.lines[line:])
    return found


def _refusals_in_log(lines: list[str]) -> list[float]:
    found = (re.search(r" code=overloaded .*?seconds=(\S+)", line) for line in lines)
    return [float(match[1]) for match in found if match]


async def _median_alone(running: Running, picture: bytes, numbers: Iterator[int]) -> float:
    caller = Caller(running.url)
    times = [(await caller.encode(marked(picture, next(numbers)))).seconds for _ in range(20)]
    return sorted(times)[len(times) // 2]


async def _peak(running: Running, picture: bytes, numbers: Iterator[int], seconds: float) -> float:
    """Images a second with as many callers as fill the workers and no more."""
    end, done = time.monotonic() + seconds, 0

    async def caller() -> None:
        nonlocal done
        connection = Caller(running.url)
        while time.monotonic() < end:
            reply = await connection.encode(marked(picture, next(numbers)))
            done += reply.status == 200

    await asyncio.gather(*(caller() for _ in range(16)))
    return done / seconds


async def _offer(running: Running, picture: bytes, numbers: Iterator[int], rate: float, seconds: float) -> list[Reply]:
    """Requests at a steady rate, whatever becomes of them."""
    idle: list[Caller] = []
    tasks: list[asyncio.Task[Reply]] = []

    async def one() -> Reply:
        caller = idle.pop() if idle else Caller(running.url)
        try:
            return await caller.encode(marked(picture, next(numbers)))
        finally:
            idle.append(caller)

    began = time.monotonic()
    for i in range(int(rate * seconds)):
        await asyncio.sleep(max(0.0, began + i / rate - time.monotonic()))
        tasks.append(asyncio.create_task(one()))
    return await asyncio.gather(*tasks)


async def _probe_live(running: Running, times: list[float]) -> None:
    caller = Caller(running.url)
    while True:
        times.append((await caller.get("/live")).seconds)
        await asyncio.sleep(PROBE_SECONDS)


async def _normal_after(running: Running, picture: bytes, numbers: Iterator[int], alone: float) -> float:
    """Seconds until one call takes no more than twice its time in calm, or 30."""
    began, caller = time.monotonic(), Caller(running.url)
    while time.monotonic() - began < 30:
        reply = await caller.encode(marked(picture, next(numbers)))
        if reply.status == 200 and reply.seconds < 2 * alone:
            break
    return time.monotonic() - began


def cpu_seconds(pid: int) -> float:
    """Processor time that a process has taken."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def pressure_seconds() -> float:
    """Time in which some process of this machine has waited for a processor; 0 where the kernel does not say."""
    path = Path("/proc/pressure/cpu")
    return int(path.read_text().split("total=", 1)[1].split()[0]) / 1e6 if path.exists() else 0.0


def rss_mib(pid: int) -> float:
    """Resident memory of a process."""
    found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) / 1024 if found else 0.0
