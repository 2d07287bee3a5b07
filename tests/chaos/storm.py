"""Random requests with random cancels, duplicates, sizes and deadlines, while children are killed and stopped."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.chaos.wire import Caller, Reply, embedding_of
from tests.system.conftest import Running

LONGEST_SECONDS = 90.0
"""No call may take longer: the service's own deadline is 60 s."""


@dataclass
class Weather:
    """What a storm does to a server, and what it has seen."""

    running: Running
    pictures: Sequence[bytes]
    own: Sequence[bytes]
    """Each picture's embedding, made in calm."""
    chance: random.Random
    seen: Counter[str] = field(default_factory=Counter)
    kills: int = 0


async def in_calm(url: str, pictures: Sequence[bytes]) -> list[bytes]:
    """Each picture's own embedding, one after the other."""
    caller = Caller(url)
    replies = [await caller.encode(picture) for picture in pictures]
    assert all(reply.status == 200 for reply in replies), Counter((r.status, r.code) for r in replies)
    made = [embedding_of(reply) for reply in replies]
    assert len(set(made)) == len(pictures), "two pictures of a gallery have one embedding"
    return made


async def storm(weather: Weather, requests: int, callers: int, kill_seconds: float) -> None:
    """Send that many requests; raises AssertionError for a stranger's embedding, a hang or a dishonest refusal."""
    left = iter(range(requests))
    killer = asyncio.create_task(_kill_now_and_then(weather, kill_seconds))
    try:
        await asyncio.gather(*(_one_caller(weather, left) for _ in range(callers)))
    finally:
        killer.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await killer


async def _one_caller(weather: Weather, left: Sequence[int] | object) -> None:
    caller, chance = Caller(weather.running.url), weather.chance
    for _ in left:  # type: ignore[attr-defined]
        i = min(chance.randrange(len(weather.pictures)), chance.randrange(len(weather.pictures)))  # some more often
        headers = [f"X-Request-Timeout-Ms: {chance.randint(1, 60)}"] if chance.random() < 0.1 else []
        leave_after = chance.uniform(0, 0.05) if chance.random() < 0.1 else LONGEST_SECONDS
        query = f"?priority={chance.randint(-3, 3)}"
        reply = await caller.encode(weather.pictures[i], *headers, query=query, leave_after=leave_after)
        weather.seen[_verdict(reply, weather.own[i], bool(headers), leave_after)] += 1
    caller.leave()


def _verdict(reply: Reply, own: bytes, has_deadline: bool, leave_after: float) -> str:
    if reply.status == 200:
        assert embedding_of(reply) == own, "a caller got another's embedding"
        return "ok"
    if reply.status == 0:
        assert leave_after < LONGEST_SECONDS or has_deadline, "a call hung, or its connection broke"
        return "left"
    expected = {"unavailable", "overloaded"} | ({"deadline_exceeded"} if has_deadline else set())
    assert reply.code in expected, (reply.status, reply.code, reply.body)
    return reply.code


async def _kill_now_and_then(weather: Weather, seconds: float) -> None:
    """End or stop one worker after the other."""
    while True:
        await asyncio.sleep(weather.chance.uniform(0.5, 1.5) * seconds)
        workers = (await asyncio.to_thread(weather.running.info))["workers"]
        ready = [worker["pid"] for worker in workers if worker["ready"] and worker["pid"]]
        if ready:
            with contextlib.suppress(ProcessLookupError):
                os.kill(weather.chance.choice(ready), weather.chance.choice((signal.SIGKILL, signal.SIGSTOP)))
            weather.kills += 1
