"""`Demand`: who waits for one image, in sum. It changes while the image is on its way, as callers join and leave."""

from __future__ import annotations

from dataclasses import dataclass

from foveal.engine.course import Course


@dataclass(frozen=True, eq=False)
class Asker:
    """One request that waits for an image."""

    caller: str = ""
    """Whose share it counts to: a key, else an address."""
    priority: int = 0
    """Larger first."""
    deadline: float | None = None
    """When it must be done, of time.monotonic()."""


class Demand:
    """As urgent as the most urgent of those who wait, and late only when all of them are."""

    def __init__(self, *askers: Asker) -> None:
        self.caller = ""
        self.priority = 0
        self.deadline: float | None = None
        """The first deadline of those who wait."""
        self.course = Course()
        """How far the image has come."""
        self.last_deadline: float | None = None
        """The last one, after which nobody waits; None where someone waits without one."""
        self._askers: list[Asker] = []
        for asker in askers:
            self.join(asker)

    @property
    def is_empty(self) -> bool:
        """True when everyone has left."""
        return not self._askers

    def join(self, asker: Asker) -> None:
        """One more wants it."""
        self._askers.append(asker)
        self._sum_up()

    def leave(self, asker: Asker) -> None:
        """One of those who joined wants it no longer. The last one's wishes stay as they were."""
        self._askers.remove(asker)
        if self._askers:
            self._sum_up()

    def is_late(self, now: float) -> bool:
        """True when nobody's deadline is still to come."""
        return self.last_deadline is not None and now >= self.last_deadline

    def _sum_up(self) -> None:
        self.caller = self._askers[0].caller
        self.priority = max(asker.priority for asker in self._askers)
        ends = [asker.deadline for asker in self._askers if asker.deadline is not None]
        self.deadline = min(ends, default=None)
        self.last_deadline = max(ends) if len(ends) == len(self._askers) else None
