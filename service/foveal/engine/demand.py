"""`Demand`: who waits for one image, in sum. It changes while the image is on its way, as callers join and leave."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from foveal.engine.sorted_items import SortedItems, some
from foveal.engine.stages import Stages


@dataclass(frozen=True, eq=False)
class Asker:
    """One request that waits for an image."""

    caller: str = ""
    """Whose share it counts to: a key, else an address."""
    priority: int = 0
    """Larger first."""
    deadline: float | None = None
    """When it must be done, of time.monotonic()."""


def nobody() -> None:
    """Is told of a change where nobody needs to know."""


class Demand:
    """As urgent as the most urgent of those who wait, and late only when all of them are."""

    def __init__(self, *askers: Asker) -> None:
        self.caller = ""
        self.priority = 0
        self.deadline: float | None = None
        """The first deadline of those who wait."""
        self.last_deadline: float | None = None
        """When nobody's deadline is still to come; None where one of them has none."""
        self.stages = Stages()
        """How far the image has come."""
        self.changed: Callable[[], None] = nobody
        """Called after each change: the queue that it waits in puts it into another place."""
        self._askers: OrderedDict[Asker, None] = OrderedDict()
        self._crowd: _Crowd | None = None
        """Orders of those who wait, once there are two."""
        for asker in askers:
            self.join(asker)

    @property
    def is_empty(self) -> bool:
        """True when everyone has left."""
        return not self._askers

    def join(self, asker: Asker) -> None:
        """One more wants it."""
        self._askers[asker] = None
        if len(self._askers) > 1 and self._crowd is None:
            self._crowd = _Crowd()
            for other in self._askers:
                self._crowd.join(other)
        elif self._crowd is not None:
            self._crowd.join(asker)
        self._sum_up()

    def leave(self, asker: Asker) -> None:
        """One of those who joined wants it no longer. The last one's wishes stay as they were."""
        del self._askers[asker]
        if self._crowd is not None:
            self._crowd.leave(asker)
        if self._askers:
            self._sum_up()

    def is_late(self, now: float) -> bool:
        """True when nobody's deadline is still to come."""
        return self.last_deadline is not None and now >= self.last_deadline

    def _sum_up(self) -> None:
        before = self.caller, self.priority, self.deadline, self.last_deadline
        first = next(iter(self._askers))
        self.caller = first.caller
        if self._crowd is None:
            self.priority, self.deadline, self.last_deadline = first.priority, first.deadline, first.deadline
        else:
            self.priority, self.deadline, self.last_deadline = self._crowd.extremes()
        if before != (self.caller, self.priority, self.deadline, self.last_deadline):
            self.changed()


class _Crowd:
    """Several who wait for one image: who joins or leaves does not look at all the others."""

    def __init__(self) -> None:
        self._by_priority: SortedItems[Asker] = SortedItems()
        self._by_deadline: SortedItems[Asker] = SortedItems()
        self._by_last: SortedItems[Asker] = SortedItems()

    def join(self, asker: Asker) -> None:
        self._by_priority.put(asker, -asker.priority)
        deadline = math.inf if asker.deadline is None else asker.deadline
        self._by_deadline.put(asker, deadline)
        self._by_last.put(asker, -deadline)

    def leave(self, asker: Asker) -> None:
        for order in (self._by_priority, self._by_deadline, self._by_last):
            order.discard(asker)

    def extremes(self) -> tuple[int, float | None, float | None]:
        """The highest priority, the first deadline and the last one, where None comes last."""
        return (
            some(self._by_priority.first).priority,
            some(self._by_deadline.first).deadline,
            some(self._by_last.first).deadline,
        )
