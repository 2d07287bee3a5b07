"""Blocks of the three arenas, waited for in order when there is no room."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from foveal.ipc.arena import Arena, ArenaFull, Block


class Allocator:
    """An arena whose callers wait their turn; `evict` may free something first (the encoder cache does)."""

    def __init__(self, arena: Arena, evict: Callable[[], bool] = lambda: False) -> None:
        self.arena = arena
        self._evictors = [evict]
        self._waiting: deque[asyncio.Event] = deque()
        self._loop = asyncio.get_running_loop()
        arena.on_release(self._wake_soon)

    def ask_first(self, evict: Callable[[], bool]) -> None:
        """Something more that can be freed, before all else."""
        self._evictors.insert(0, evict)

    async def block(self, length: int) -> Block:
        """A block of `length` bytes. Waits for room; who came first is served first."""
        if not self._waiting and (block := self._try(length)) is not None:
            return block
        turn = asyncio.Event()
        self._waiting.append(turn)
        try:
            while self._waiting[0] is not turn or (block := self._try(length)) is None:
                turn.clear()
                await turn.wait()
            return block
        finally:
            self._waiting.remove(turn)
            self._wake()

    def _try(self, length: int) -> Block | None:
        while True:
            try:
                return self.arena.allocate(length)
            except ArenaFull:
                if not any(evict() for evict in self._evictors):
                    return None

    def _wake_soon(self) -> None:
        if self._waiting:  # a finalizer may run in any thread and inside any statement
            self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        if self._waiting:
            self._waiting[0].set()
