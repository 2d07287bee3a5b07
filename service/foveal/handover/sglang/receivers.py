"""Which sockets wait for which part: SGLang's ranks say so in posts that come before or after the part itself."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from foveal.errors import InvalidRequest, Overloaded
from foveal.handover.sglang.hosts import Endpoint

MAX_POSTS = 1 << 16
"""Ranks that wait, of all parts together."""
KEPT_SECONDS = 300.0
"""A post is forgotten after this time, longer than SGLang waits for a part by default (180 s)."""

Key = tuple[str, str]
"""Owner and part: nobody has a part sent elsewhere whose key it does not hold."""


@dataclass(eq=False)
class _Ranks:
    """The ranks of one part."""

    posted_at: float
    count: int | None = None
    """How many there will be; None before the first post."""
    endpoints: list[Endpoint] = field(default_factory=list)
    complete: asyncio.Event = field(default_factory=asyncio.Event)
    is_taken: bool = False
    """True while its part is here: it does not expire then."""


class Receivers:
    """Matches posts and parts in any order."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._ranks: OrderedDict[Key, _Ranks] = OrderedDict()
        self._num_posts = 0

    def __len__(self) -> int:
        return len(self._ranks)

    def post(self, key: Key, count: int, endpoint: Endpoint) -> None:
        """One rank waits there; raises InvalidRequest where it contradicts another, Overloaded when too many wait."""
        self._forget_old()
        if self._num_posts >= MAX_POSTS:
            raise Overloaded(f"{MAX_POSTS} ranks wait for parts already; try again later", retry_after=1.0)
        ranks = self._ranks_of(key)
        if ranks.count not in (None, count):
            raise InvalidRequest(f"receive_count is {count}, another rank of this part said {ranks.count}")
        ranks.count = count
        if endpoint not in ranks.endpoints:
            if len(ranks.endpoints) == count:
                raise InvalidRequest(f"all {count} ranks of this part have said where they wait")
            ranks.endpoints.append(endpoint)
            self._num_posts += 1
        if len(ranks.endpoints) == count:
            ranks.complete.set()

    async def of(self, key: Key) -> list[Endpoint]:
        """All ranks of a part, as soon as each has said where it waits. They are forgotten with that."""
        ranks = self._ranks_of(key)
        if ranks.is_taken:
            raise InvalidRequest("this part is already being encoded; its req_id must be its own")
        ranks.is_taken = True
        try:
            await ranks.complete.wait()
            return ranks.endpoints
        finally:
            self._forget(key)

    def _ranks_of(self, key: Key) -> _Ranks:
        if (ranks := self._ranks.get(key)) is None:
            ranks = self._ranks[key] = _Ranks(self._clock())
        return ranks

    def _forget(self, key: Key) -> None:
        self._num_posts -= len(self._ranks.pop(key).endpoints)

    def _forget_old(self) -> None:
        """Posts whose part never came; the oldest stand first."""
        before = self._clock() - KEPT_SECONDS
        old = list(itertools.takewhile(lambda entry: entry[1].posted_at <= before, self._ranks.items()))
        for key, ranks in old:
            if not ranks.is_taken:
                self._forget(key)
