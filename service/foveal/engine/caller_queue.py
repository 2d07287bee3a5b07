"""`CallerQueue`: what one caller has waiting, in two orders that time does not change. See `waiting_queue`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from heapq import merge

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
        """Priority of its first steady entry, by which it is ranked."""

    def since(self, entry: Entry) -> float:
        """From when an entry's age counts among those of other callers."""
        return max(self.served, entry.arrival)

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
