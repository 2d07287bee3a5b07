"""The encoder cache: finished embeddings by content, bounded in bytes; and the flights of those not finished.

An embedding in the cache is the very block that the worker wrote and that answers are sent from: a hit copies
nothing. A key covers the bytes and all that decides the answer.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Generic, TypeVar

from foveal.engine.demand import Asker, Demand
from foveal.engine.items import Encoded
from foveal.engine.stages import Stages
from foveal.metrics import Metrics

Result = TypeVar("Result")
Key = str
"""A content key (engine/keys.py)."""


class EncoderCache:
    """Least recently used embeddings leave first. What is larger than the whole cache is not taken."""

    def __init__(self, max_bytes: int, metrics: Metrics) -> None:
        self.max_bytes = max_bytes
        self._entries: OrderedDict[Key, Encoded] = OrderedDict()
        self._bytes = 0
        self._metrics = metrics

    def __contains__(self, key: Key) -> bool:
        return key in self._entries

    def get(self, key: Key) -> Encoded | None:
        """The embedding of `key`, now the most recently used."""
        found = self._entries.get(key)
        if found is None:
            self._metrics.cache_misses.inc()
            return None
        self._entries.move_to_end(key)
        self._metrics.cache_hits.inc()
        return found

    def peek(self, key: Key) -> Encoded | None:
        """The embedding of `key`, for someone who would not encode it otherwise: counts neither hit nor miss."""
        return self._entries.get(key)

    def put(self, key: Key, encoded: Encoded) -> None:
        """Keep an embedding, unless it could never fit."""
        if encoded.num_bytes > self.max_bytes:
            return
        if (old := self._entries.pop(key, None)) is not None:
            self._bytes -= old.num_bytes
        while self._bytes + encoded.num_bytes > self.max_bytes:
            self.evict()
        self._entries[key] = encoded
        self._bytes += encoded.num_bytes
        self._show()

    def evict(self) -> bool:
        """Drop the least recently used embedding; False when there is none."""
        if not self._entries:
            return False
        _, dropped = self._entries.popitem(last=False)
        self._bytes -= dropped.num_bytes
        self._metrics.cache_evictions.inc()
        self._show()
        return True

    def shown(self) -> dict[str, int]:
        """For /info."""
        return {"max_bytes": self.max_bytes, "bytes": self._bytes, "entries": len(self._entries)}

    def _show(self) -> None:
        self._metrics.cache_bytes.set(self._bytes)
        self._metrics.cache_entries.set(len(self._entries))


class Flights(Generic[Result]):
    """Single-flight: equal keys in flight share one encode, which ends when nobody waits for it any more."""

    def __init__(self) -> None:
        self._flights: dict[Key, _Flight[Result]] = {}

    def __contains__(self, key: Key) -> bool:
        return key in self._flights

    def stages_of(self, key: Key) -> Stages:
        """How far a flight that there is has come."""
        return self._flights[key].demand.stages

    async def join(self, key: Key, asker: Asker, start: Callable[[Demand], Awaitable[Result]]) -> Result:
        """The result of `key`'s flight, started if there is none; it is told of who joins and leaves.

        A caller who leaves or whose deadline passes does not stop the others; the last one to leave stops the
        flight. An error reaches every caller.
        """
        flight = self._flights.get(key)
        if flight is None:
            demand = Demand(asker)
            flight = self._flights[key] = _Flight(asyncio.ensure_future(start(demand)), demand)
            flight.task.add_done_callback(partial(self._land, key, flight))
        else:
            flight.demand.join(asker)
        del flight  # see `_result`
        return await self._result(key, asker)

    async def wait(self, key: Key, asker: Asker) -> Result | None:
        """The result of `key`'s flight, as one more who waits for it; None if there is no flight."""
        if key not in self._flights:
            return None
        self._flights[key].demand.join(asker)
        return await self._result(key, asker)

    async def _result(self, key: Key, asker: Asker) -> Result:
        flight = self._flights[key]
        try:
            return await asyncio.shield(flight.task)
        finally:
            flight.demand.leave(asker)
            if flight.demand.is_empty and not flight.task.done():
                self._forget(key, flight)  # who comes now starts a new one
                flight.task.cancel()
            del flight  # or an error's traceback, this frame and its task would keep each other, and shared memory

    def _land(self, key: Key, flight: _Flight[Result], task: asyncio.Future[Result]) -> None:
        self._forget(key, flight)
        if not task.cancelled():
            task.exception()  # every waiter may have left: the error was theirs to see, not the log's

    def _forget(self, key: Key, flight: _Flight[Result]) -> None:
        if self._flights.get(key) is flight:
            del self._flights[key]


class _Flight(Generic[Result]):
    def __init__(self, task: asyncio.Future[Result], demand: Demand) -> None:
        self.task = task
        self.demand = demand
