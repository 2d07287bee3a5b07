"""Three times what a real worker can do: the processors that it computes with also refuse, read and decode.

With a worker that only sleeps, all else has the processors to itself, and what overload costs does not show. Callers
here come at a steady rate, whatever becomes of them; every fifth has little patience.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count

from tests.chaos.pictures import marked
from tests.chaos.wire import Caller, Reply
from tests.system.conftest import Running
from tests.system.test_encode import noise

FLAGS = ("--cpu-workers", "1", "--max-queue-tokens", "16384")
SIDE = 384
CALLERS = 16
"""In calm: enough that the worker never waits for them."""
WARM_UP_SECONDS = 3.0
IMPATIENT_SHARE, PATIENCE = 5, "X-Request-Timeout-Ms: 1000"
"""Every so manieth caller, and what it says."""
EXPLAINED = ("200", "overloaded", "deadline_exceeded")


@dataclass
class Overload:
    """What was measured, calm and overload in turns; rates in images a second."""

    calm: list[float] = field(default_factory=list)
    goodput: list[float] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)
    refused: list[float] = field(default_factory=list)
    """Seconds of each refusal."""

    @property
    def share(self) -> float:
        """Goodput of the calm rate, over all rounds."""
        return sum(self.goodput) / sum(self.calm)

    @property
    def others(self) -> dict[str, int]:
        """Outcomes that overload does not explain."""
        return {name: number for name, number in self.outcomes.items() if name not in EXPLAINED}


async def overload(running: Running, rounds: int, seconds: float, times: float) -> Overload:
    """Rounds of so many seconds in calm, and as long at so many times that rate."""
    numbers, picture, found = count(), noise(SIDE, SIDE, 1), Overload()
    await _in_calm(running, picture, numbers, WARM_UP_SECONDS)
    for _ in range(rounds):
        found.calm.append(await _in_calm(running, picture, numbers, seconds))
        replies, spent = await _offer(running, picture, numbers, found.calm[-1] * times, seconds)
        found.goodput.append(sum(reply.status == 200 for reply in replies) / spent)
        found.outcomes.update(reply.code or str(reply.status) for reply in replies)
        found.refused += [reply.seconds for reply in replies if reply.code == "overloaded"]
    return found


async def _in_calm(running: Running, picture: bytes, numbers: Iterator[int], seconds: float) -> float:
    """Images a second with as many callers as keep the worker busy."""
    began, done = time.monotonic(), 0

    async def caller() -> None:
        nonlocal done
        connection = Caller(running.url)
        while time.monotonic() < began + seconds:
            reply = await connection.encode(marked(picture, next(numbers)))
            done += reply.status == 200

    await asyncio.gather(*(caller() for _ in range(CALLERS)))
    return done / (time.monotonic() - began)


async def _offer(
    running: Running, picture: bytes, numbers: Iterator[int], rate: float, seconds: float
) -> tuple[list[Reply], float]:
    """Requests at a steady rate, and the seconds until the last was answered."""
    idle: list[Caller] = []
    tasks: list[asyncio.Task[Reply]] = []

    async def one(i: int) -> Reply:
        caller = idle.pop() if idle else Caller(running.url)
        patience = [] if i % IMPATIENT_SHARE else [PATIENCE]
        try:
            return await caller.encode(marked(picture, next(numbers)), *patience)
        finally:
            idle.append(caller)

    began = time.monotonic()
    for i in range(int(rate * seconds)):
        await asyncio.sleep(max(0.0, began + i / rate - time.monotonic()))
        tasks.append(asyncio.create_task(one(i)))
    replies = await asyncio.gather(*tasks)
    return replies, time.monotonic() - began
