"""Random requests with random cancels, duplicates, sizes and deadlines, while children are killed and stopped."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
from collections import Counter
from collections.abc import Iterator, Sequence
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


async def storm(weather: Weather, requests: int, callers: int, kill_every: int) -> None:
    """Send that many requests, and end or stop a worker while every so many-th is in flight.

    Raises AssertionError for a stranger's embedding, a hang or a dishonest refusal.
    """
    left = iter(range(1, requests + 1))
    await asyncio.gather(*(_one_caller(weather, left, kill_every) for _ in range(callers)))


async def _one_caller(weather: Weather, left: Iterator[int], kill_every: int) -> None:
    caller, chance = Caller(weather.running.url), weather.chance
    for number in left:
        i = min(chance.randrange(len(weather.pictures)), chance.randrange(len(weather.pictures)))  # some more often
        headers = [f"X-Request-Timeout-Ms: {chance.randint(1, 60)}"] if chance.random() < 0.1 else []
        leave_after = chance.uniform(0, 0.05) if chance.random() < 0.1 else LONGEST_SECONDS
        query = f"?priority={chance.randint(-3, 3)}"
        call = caller.encode(weather.pictures[i], *headers, query=query, leave_after=leave_after)
        kill = _end_or_stop_one(weather) if number % kill_every == 0 else _nothing()
        reply, _ = await asyncio.gather(call, kill)
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


async def _end_or_stop_one(weather: Weather) -> None:
    """End or stop one of the workers that are ready; without effect where none is."""
    workers = (await asyncio.to_thread(weather.running.info))["workers"]
    ready = [worker["pid"] for worker in workers if worker["ready"] and worker["pid"]]
    if ready:
        with contextlib.suppress(ProcessLookupError):
            os.kill(weather.chance.choice(ready), weather.chance.choice((signal.SIGKILL, signal.SIGSTOP)))
        weather.kills += 1


async def _nothing() -> None:
    """Kill nobody."""
