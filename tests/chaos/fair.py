"""One caller who sends now and then, alone and beside another's crowd."""

from __future__ import annotations

import asyncio
import time
from itertools import count

from tests.chaos.pictures import marked
from tests.chaos.wire import Caller, Reply
from tests.system.conftest import Running
from tests.system.test_encode import noise

CROWD = 60
PAUSE_SECONDS = 0.5
"""Half of what a refusal asks for."""


async def fair(running: Running, seconds: float) -> tuple[list[float], list[float], int]:
    """Seconds of the single caller's calls, alone and beside a crowd; how many of them were refused."""
    picture, numbers, stop = noise(50, 50, 1), count(), asyncio.Event()
    single = Caller(running.url, "Authorization: Bearer single")

    async def calls(end: float) -> list[Reply]:
        found: list[Reply] = []
        while time.monotonic() < end:
            found.append(await single.encode(marked(picture, next(numbers))))
        return found

    alone = await calls(time.monotonic() + seconds / 2)
    crowd = [asyncio.create_task(_one_of_a_crowd(running, picture, i, stop)) for i in range(CROWD)]
    await asyncio.sleep(1.0)
    beside = await calls(time.monotonic() + seconds)
    stop.set()
    await asyncio.gather(*crowd)
    return [r.seconds for r in alone], [r.seconds for r in beside], sum(r.status != 200 for r in beside)


async def _one_of_a_crowd(running: Running, picture: bytes, i: int, stop: asyncio.Event) -> None:
    caller, number = Caller(running.url, "Authorization: Bearer bulk"), 1_000_000 * (i + 1)
    while not stop.is_set():
        number += 1
        if (await caller.encode(marked(picture, number))).status != 200:
            await asyncio.sleep(PAUSE_SECONDS)
    caller.leave()
