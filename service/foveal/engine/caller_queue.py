"""`CallerQueue`: what one caller has waiting, in two orders that time does not change. See `waiting_queue`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from heapq import heappop, heappush, heapreplace, merge

from foveal.engine.items import Entry
from foveal.engine.packing import AGEING_SECONDS, DEADLINE_SECONDS, DEADLINE_STEPS, urgency
from foveal.engine.sorted_items import SortedItems


class CallerQueue:
    """What one caller has waiting, most urgent first."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.served = -math.inf
        """When one of its entries was last taken."""
        self.steady: SortedItems[Entry] = SortedItems()
        self.near: SortedItems[Entry] = SortedItems()
        self.level: int | None = None
        """Priority of its first entry, by which it is ranked."""

    def since(self, entry: Entry) -> float:
        """From when an entry's age counts among those of other callers."""
        return max(self.served, entry.arrival)

    def first(self, now: float) -> Entry | None:
        """Its most urgent entry."""
        near, steady = self.near.first, self.steady.first
        if near is None or steady is None:
            return steady if near is None else near
        return near if urgency(near, near.arrival, now) > urgency(steady, steady.arrival, now) else steady

    def in_order(self, now: float) -> Iterator[Entry]:
        """Its entries, most urgent first."""
        if not self.near:
            return iter(self.steady)
        return merge(self.steady, self.near, key=lambda entry: -urgency(entry, entry.arrival, now))


def order_key(entry: Entry, since: float, now: float, *, is_near: bool) -> float:
    """Less for what is more urgent (`packing.urgency`), without what grows alike for all of its order."""
    key = since / AGEING_SECONDS - entry.priority
    if entry.deadline is not None and is_near:
        return key - DEADLINE_STEPS * (1 - entry.deadline / DEADLINE_SECONDS)
    return key - DEADLINE_STEPS if entry.deadline is not None and entry.deadline <= now else key


def in_turns(accounts: Iterable[tuple[CallerQueue, float]], now: float) -> Iterator[Entry]:
    """The entries of callers, who come in the order of their first ones: higher priorities first, then by when each
    would finish, were all of a caller's on its account one after the other.
    """
    following: list[_Turn] = []
    for i, (caller, account) in enumerate(accounts):
        turn = _next_turn(account, i, caller.in_order(now))
        while turn and following and following[0] < turn:
            yield _step(following)
        if turn:
            yield turn[3]
            if second := _next_turn(turn[1], i, turn[4]):
                heappush(following, second)
    while following:
        yield _step(following)


_Turn = tuple[int, float, int, Entry, Iterator[Entry]]
"""Priority, smaller first; finish; place of the caller; its entry, and those after it."""


def _next_turn(account: float, place: int, entries: Iterator[Entry]) -> _Turn | None:
    entry = next(entries, None)
    return None if entry is None else (-entry.priority, account + entry.num_tokens, place, entry, entries)


def _step(following: list[_Turn]) -> Entry:
    """The entry whose turn it is; the next of its caller's takes its place."""
    _, finish, place, entry, entries = following[0]
    if turn := _next_turn(finish, place, entries):
        heapreplace(following, turn)
    else:
        heappop(following)
    return entry
