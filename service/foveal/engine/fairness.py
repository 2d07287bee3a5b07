"""Whose turn it is: round robin over callers, so that one caller's crowd does not push the others back. Pure.

Each caller's entries stand in an order of their own (packing's urgency: priority, age, deadline). Of each caller
only the first competes to be the most urgent of all, and there its age counts from its *turn*: when it came, or
when its caller was last served, whichever is later.

What follows: with equal priorities and no deadlines, a caller's first entry sees at most one pack start before its
own for each other caller that waits, however many entries those have; for whoever was served has a later turn than
it. A lead in priority, or a near deadline, lets others go before it for AGEING_SECONDS a step, as in packing.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

from foveal.engine.packing import Packable, urgency

Task = TypeVar("Task")


class Queued(Packable, Protocol):
    """An entry that waits, and whose it is."""

    @property
    def caller(self) -> str:
        """Whose share it counts to."""

    @property
    def turn(self) -> float:
        """When its caller was last served, or when it came if that is later."""


def fair_order(entries: Sequence[Queued], now: float) -> list[int]:
    """Places of the entries, most urgent first: the first of each caller, then the second of each, and so on."""
    own = sorted(range(len(entries)), key=lambda i: urgency(entries[i], entries[i].arrival, now), reverse=True)
    rounds: dict[str, int] = {}
    keys: dict[int, tuple[int, float]] = {}
    for i in own:
        entry = entries[i]
        place = rounds[entry.caller] = rounds.get(entry.caller, -1) + 1
        keys[i] = place, -urgency(entry, max(entry.turn, entry.arrival), now)
    return sorted(own, key=keys.__getitem__)


class TurnQueue(Generic[Task]):
    """First come, first served within a caller; round robin over callers. For work of which all is equally urgent."""

    def __init__(self) -> None:
        self._callers: OrderedDict[str, deque[Task]] = OrderedDict()

    def __len__(self) -> int:
        return sum(map(len, self._callers.values()))

    def put(self, caller: str, task: Task) -> None:
        """Queue a task of this caller's."""
        self._callers.setdefault(caller, deque()).append(task)

    def put_back(self, caller: str, task: Task) -> None:
        """Queue a task before all others of its caller's, which waits for its turn like before."""
        self._callers.setdefault(caller, deque()).appendleft(task)

    def take(self) -> Task | None:
        """The next task; its caller's turn comes again after all others'."""
        if not self._callers:
            return None
        caller, tasks = self._callers.popitem(last=False)
        task = tasks.popleft()
        if tasks:
            self._callers[caller] = tasks
        return task

    def discard(self, caller: str, task: Task) -> None:
        """Forget a task that nobody wants any more, with all that it holds; without effect on one that was taken."""
        tasks = self._callers.get(caller)
        if tasks is not None and task in tasks:
            tasks.remove(task)
            if not tasks:
                del self._callers[caller]

    def all(self) -> list[Task]:
        """Everything that waits."""
        return [task for tasks in self._callers.values() for task in tasks]
