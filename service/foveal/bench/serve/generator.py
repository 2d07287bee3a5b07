"""One generator process: fires its share of a schedule, each request when due, and keeps a row of figures."""

from __future__ import annotations

import asyncio
import os
import selectors
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from foveal.bench.serve.payloads import Composer, Target
from foveal.bench.serve.pictures import copy_of
from foveal.bench.serve.schedule import Schedule
from foveal.bench.serve.wire import Answer, Pool

STAGES = ("fetch", "probe", "prep", "queue", "copy_in", "encode", "copy_out", "total")
"""As the service names them in Server-Timing; `total` is its own whole."""
MAX_SELECTED = 1000
"""Descriptors that select() sees, less some that are open for other ends."""


@dataclass(frozen=True)
class Shares:
    """What every process of a run needs, sent to it once."""

    target: Target
    pictures: Sequence[bytes]
    max_connections: int


@dataclass(frozen=True)
class Samples:
    """A row per request, in seconds; `codes` index `code_names`."""

    due: npt.NDArray[np.float64]
    lag: npt.NDArray[np.float32]
    """How late the generator itself was in sending."""
    latency: npt.NDArray[np.float32]
    """From the moment it was due to the last byte of the answer."""
    codes: npt.NDArray[np.int16]
    num_bytes: npt.NDArray[np.int64]
    stages: npt.NDArray[np.float32]
    """[requests, STAGES]; zero where the server said nothing."""
    code_names: tuple[str, ...]
    cpu_seconds: float
    wall_seconds: float
    num_waits: int
    """Requests that found every connection in use."""

    @classmethod
    def joined(cls, parts: Sequence[Samples]) -> Self:
        """The samples of several processes as one. Processor time is the busiest one's: that is the limit."""
        names = tuple(sorted({name for part in parts for name in part.code_names}))
        codes = [np.array([names.index(n) for n in part.code_names], np.int16)[part.codes] for part in parts]
        columns = {
            name: np.concatenate([getattr(part, name) for part in parts])
            for name in ("due", "lag", "latency", "num_bytes", "stages")
        }
        busiest = max(parts, key=lambda part: part.cpu_seconds / part.wall_seconds)
        return cls(
            **columns,
            codes=np.concatenate(codes),
            code_names=names,
            cpu_seconds=busiest.cpu_seconds,
            wall_seconds=busiest.wall_seconds,
            num_waits=sum(part.num_waits for part in parts),
        )


def fire(shares: Shares, schedule: Schedule, start: float) -> Samples:
    """Send a share of a schedule, whose time 0 is `start` on the monotonic clock that all processes see."""
    loop = asyncio.SelectorEventLoop(_selector(shares.max_connections))
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(_Volley(shares, schedule, start).fire())


def _selector(max_connections: int) -> selectors.BaseSelector:
    """select() takes microseconds where epoll rounds up to whole milliseconds, which would be charged to the server.

    But it sees descriptors below 1024 only: a process that has many open already takes epoll.
    """
    next_free = os.dup(0)
    os.close(next_free)
    return selectors.SelectSelector() if next_free + max_connections < MAX_SELECTED else selectors.DefaultSelector()


class _Volley:
    """The state of one call of `fire`."""

    def __init__(self, shares: Shares, schedule: Schedule, start: float) -> None:
        count = len(schedule.due)
        self._shares, self._schedule, self._start = shares, schedule, start
        self._composer = Composer(shares.target)
        self._pool = Pool(shares.target, shares.max_connections)
        self._lag, self._latency = np.zeros(count, np.float32), np.zeros(count, np.float32)
        self._codes, self._num_bytes = np.zeros(count, np.int16), np.zeros(count, np.int64)
        self._stages = np.zeros((count, len(STAGES)), np.float32)
        self._code_numbers = {"ok": 0}

    async def fire(self) -> Samples:
        """All requests; returns when the last one is answered."""
        cpu, began = time.process_time(), time.monotonic()
        try:
            async with asyncio.TaskGroup() as group:
                for i, due in enumerate(self._schedule.due):
                    # made before it is due, so that composing does not make it late
                    request = self._request(i)
                    if (left := self._start + due - time.monotonic()) > 0:
                        await asyncio.sleep(left)
                    group.create_task(self._one(i, request))
        finally:
            self._pool.close()
        return Samples(
            self._schedule.due,
            self._lag,
            self._latency,
            self._codes,
            self._num_bytes,
            self._stages,
            tuple(self._code_numbers),
            time.process_time() - cpu,
            max(time.monotonic() - began, 1e-9),
            self._pool.num_waits,
        )

    def _request(self, i: int) -> bytes:
        pairs = zip(self._schedule.pictures[i], self._schedule.copies[i], strict=True)
        return self._composer.compose([copy_of(self._shares.pictures[picture], int(copy)) for picture, copy in pairs])

    async def _one(self, i: int, request: bytes) -> None:
        due = self._start + self._schedule.due[i]
        self._lag[i] = time.monotonic() - due
        answer = await self._pool.ask(request)
        self._latency[i] = time.monotonic() - due
        self._keep(i, answer)

    def _keep(self, i: int, answer: Answer) -> None:
        self._codes[i] = self._code_numbers.setdefault(answer.code, len(self._code_numbers))
        self._num_bytes[i] = answer.num_bytes
        self._stages[i] = [answer.stages.get(name, 0.0) / 1000 for name in STAGES]
