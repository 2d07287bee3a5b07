"""`DecodeRate`: how fast pictures are decoded here, told by those that were."""

from __future__ import annotations

MEMORY_PICTURES = 32
"""About so many of the last tell."""
SHARE = 0.25
"""Of the usual time that a picture takes at least: work is told by headers, and right within a factor of a few."""


class DecodeRate:
    """Seconds of a unit of work (vision/work.py), forgetting exponentially; nothing is known before the first."""

    def __init__(self) -> None:
        self._seconds = self._work = 0.0

    def note(self, work: int, seconds: float) -> None:
        """A picture of so much work took so long."""
        kept = 1 - 1 / MEMORY_PICTURES
        self._seconds = self._seconds * kept + seconds
        self._work = self._work * kept + work

    def least_seconds(self, work: int) -> float:
        """Time that a picture of this much work takes at least."""
        return SHARE * work * self._seconds / self._work if self._work else 0.0
