"""`SortedItems`: a set in order, for queues that are looked at from their head."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

Thing = TypeVar("Thing", bound=Hashable)


class SortedItems(Generic[Thing]):
    """Things in ascending order of a key each; of equal keys the one that was put first goes first.

    Putting and discarding look at O(log n) of them. The list moves its pointers in one copy, which for thousands is
    less than the looking takes, so that no tree is needed.
    """

    def __init__(self) -> None:
        self._rows: list[tuple[float, int, Thing]] = []
        self._row_of: dict[Thing, tuple[float, int, Thing]] = {}
        self._puts = 0

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, thing: Thing) -> bool:
        return thing in self._row_of

    def __iter__(self) -> Iterator[Thing]:
        """In order. Nothing may be put or discarded meanwhile."""
        return (row[2] for row in self._rows)

    def put(self, thing: Thing, key: float) -> None:
        """Add a thing, or give it another key."""
        row = self._row_of.get(thing)
        if row is not None:
            if row[0] == key:
                return
            self._remove(row)
        self._puts += 1
        row = self._row_of[thing] = key, self._puts, thing
        insort(self._rows, row)

    def discard(self, thing: Thing) -> None:
        """Take a thing out, if it is there."""
        row = self._row_of.pop(thing, None)
        if row is not None:
            self._remove(row)

    @property
    def first(self) -> Thing | None:
        """The thing with the least key."""
        return self._rows[0][2] if self._rows else None

    @property
    def least(self) -> float | None:
        """The key of the first."""
        return self._rows[0][0] if self._rows else None

    def key_of(self, thing: Thing) -> float | None:
        """The key that a thing was put with; None if it is not there."""
        row = self._row_of.get(thing)
        return None if row is None else row[0]

    def _remove(self, row: tuple[float, int, Thing]) -> None:
        del self._rows[bisect_left(self._rows, row)]


def some(thing: Thing | None) -> Thing:
    """The first of what is known to hold something."""
    assert thing is not None, "an order is empty that should not be: this is a bug"
    return thing
