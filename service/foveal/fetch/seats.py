"""`Seats`: how many fetches run at a time, from one host and in all."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass


@dataclass
class _Host:
    seats: asyncio.Semaphore
    num_users: int = 0


class Seats:
    """First come, first served. Knows only hosts that someone uses or waits for."""

    def __init__(self, max_per_host: int, max_in_all: int) -> None:
        self._max_per_host = max_per_host
        self._all = asyncio.Semaphore(max_in_all)
        self._hosts: dict[str, _Host] = {}

    def __len__(self) -> int:
        """Hosts in use."""
        return len(self._hosts)

    @contextlib.asynccontextmanager
    async def seat(self, host: str) -> AsyncIterator[None]:
        """Wait for a seat, and hold it."""
        entry = self._hosts.setdefault(host, _Host(asyncio.Semaphore(self._max_per_host)))
        entry.num_users += 1
        try:
            # the host's first: who waits for a slow host takes no seat from others
            async with entry.seats, self._all:
                yield
        finally:
            entry.num_users -= 1
            if not entry.num_users:
                del self._hosts[host]
