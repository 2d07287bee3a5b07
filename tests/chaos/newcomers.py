"""Callers with new connections, beside so many busy ones that the server's loop never rests."""

from __future__ import annotations

import asyncio
import time
from itertools import count

from tests.chaos.pictures import marked
from tests.chaos.wire import Caller, Reply
from tests.system.conftest import Running
from tests.system.test_encode import noise

BUSY = 64
NEW_A_SECOND = 60


async def newcomers(running: Running, seconds: float) -> tuple[list[float], float]:
    """Seconds of each newcomer's call, connecting included; calls a second of the busy ones."""
    picture, numbers, stop = noise(50, 50, 1), count(), asyncio.Event()

    async def busy() -> int:
        caller, calls = Caller(running.url), 0
        while not stop.is_set():
            await caller.encode(marked(picture, next(numbers)))
            calls += 1
        caller.leave()
        return calls

    async def new() -> Reply:
        caller = Caller(running.url)
        reply = await caller.encode(marked(picture, next(numbers)))
        caller.leave()
        return reply

    crowd = [asyncio.create_task(busy()) for _ in range(BUSY)]
    await asyncio.sleep(1.0)
    began, calls = time.monotonic(), []
    for i in range(int(NEW_A_SECOND * seconds)):
        await asyncio.sleep(max(0.0, began + i / NEW_A_SECOND - time.monotonic()))
        calls.append(asyncio.create_task(new()))
    replies = await asyncio.gather(*calls)
    stop.set()
    total = sum(await asyncio.gather(*crowd))
    return [reply.seconds for reply in replies], total / (time.monotonic() - began + 1.0)
