"""One of two workers is stopped with packs in hand. With the real worker."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from dataclasses import dataclass

from tests.chaos.pictures import marked
from tests.chaos.wire import Caller, Reply
from tests.system.conftest import Running
from tests.system.test_encode import noise

FLAGS = ("--cpu-workers", "2", "--prep-workers", "1", "--ready-quorum", "2")
CALLERS = 12
NOTICED_SECONDS = 10.0
POLL_SECONDS = 0.05


@dataclass(frozen=True)
class Stopped:
    """Seconds from the signal on."""

    not_up: float
    """Until `foveal_worker_up` said so."""
    restarted: float
    """Until the process had been ended."""
    answered: float
    """Until the last of the callers had an answer."""
    replies: list[Reply]


async def stopped(running: Running) -> Stopped:
    """Stop a worker while callers wait, and see how long it takes."""
    picture = noise(900, 900, 1)
    victim = (await asyncio.to_thread(running.info))["workers"][0]["pid"]
    calls = [asyncio.create_task(Caller(running.url).encode(marked(picture, i))) for i in range(CALLERS)]
    await _until(running, "foveal_inflight_items", lambda value: value >= CALLERS / 2)
    os.kill(victim, signal.SIGSTOP)
    began = time.monotonic()

    async def since(name: str, reached: float) -> float:
        await _until(running, name, lambda value: value == reached)
        return time.monotonic() - began

    times = asyncio.gather(since("foveal_worker_up", 1), since("foveal_worker_restarts_total", 1))
    replies = await asyncio.gather(*calls)
    answered = time.monotonic() - began
    return Stopped(*await times, answered, list(replies))


async def _until(running: Running, name: str, holds) -> None:  # type: ignore[no-untyped-def]
    while not holds(await asyncio.to_thread(running.metric, name)):
        await asyncio.sleep(POLL_SECONDS)
