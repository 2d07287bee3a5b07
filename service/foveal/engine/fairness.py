"""Whose turn it is: who used least of late goes next, so that neither a crowd nor large work pushes others back.

This is weighted fair queueing with equal weights (Demers, Keshav, Shenker 1989), with the virtual time of WF2Q+
(Bennett, Zhang 1997), which needs no simulation of a fluid server. Each caller has an account: the virtual time up
to which it has used its share. Work of cost x starts at its caller's account and would finish at account + x; the
least finish goes first, and when it goes the account is set to that. Virtual time grows by the cost of what goes over
the number of callers who wait or are ahead of it, which is as fast as the account of one who gets just its share.

What follows, for callers who always have something waiting: their use differs by no more than one piece of work of
each and what fills the slack of packs. One who asks for little at a time finishes early in virtual time, and so waits
for what runs and little more. A caller who comes starts at the present virtual time: idling saves nothing up. Between
-max_lead and max_lead of virtual time an account is exact; what goes beyond is forgotten, so that nobody pays for ever.
Where ever more callers come, a share is as small as one likes. So of four turns one is for those who starve.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

from foveal.engine.sorted_items import SortedItems, some

Task = TypeVar("Task")

STARVED_SECONDS = 10.0
"""Who has not been served for so long has a turn whatever the shares are."""
TURNS_BY_SHARE = 3
"""Between two turns of those who starve: shares go on, and who asks for little does not wait for all of them."""


class FairShares:
    """The accounts of callers: of those who wait, and of those who used more than their share until that is past."""

    def __init__(self, max_lead: float) -> None:
        self.virtual_time = 0.0
        self._max_lead = max_lead
        self._waiting: SortedItems[str] = SortedItems()
        self._resting: SortedItems[str] = SortedItems()

    def __len__(self) -> int:
        return len(self._waiting) + len(self._resting)

    def join(self, caller: str) -> None:
        """This caller has something waiting now."""
        account = self._resting.key_of(caller)
        self._resting.discard(caller)
        self._waiting.put(caller, self.virtual_time if account is None else max(account, self.virtual_time))

    def leave(self, caller: str) -> None:
        """Nothing of this caller's waits any more. While others wait, an account ahead of virtual time is kept."""
        account = self.account(caller)
        self._waiting.discard(caller)
        if not self._waiting:  # who comes now competes with nobody who went before
            self._resting = SortedItems()
        elif account > self.virtual_time:
            self._resting.put(caller, account)

    def account(self, caller: str) -> float:
        """The virtual time up to which a caller who waits has used its share."""
        return some(self._waiting.key_of(caller))

    def charge(self, costs: Mapping[str, float]) -> None:
        """Work of these callers, who still count as waiting, goes now."""
        before = self.virtual_time
        self.virtual_time += sum(costs.values()) / len(self)
        for caller, cost in costs.items():
            most = max(self._max_lead, cost)
            used = max(self.account(caller), before - most) + cost
            self._waiting.put(caller, min(used, self.virtual_time + most))
        self.virtual_time = max(self.virtual_time, some(self._waiting.least))
        self._forget_past()

    def _forget_past(self) -> None:
        while (least := self._resting.least) is not None and least <= self.virtual_time:
            self._resting.discard(some(self._resting.first))


class TurnQueue(Generic[Task]):
    """First come, first served within a caller; fair shares of cost over callers. For work that is equally urgent.

    Nothing here looks at more than O(log callers) of what waits.
    """

    def __init__(self, max_lead: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._callers: dict[str, OrderedDict[Task, float]] = {}
        self._since: OrderedDict[str, float] = OrderedDict()
        """When each caller was last served, or came; the longest ago first."""
        self._clock = clock
        self._passed = 0
        """Turns since the longest waiting caller had one."""
        self._turns: SortedItems[str] = SortedItems()
        self._shares = FairShares(max_lead)
        self._num_tasks = 0

    def __len__(self) -> int:
        return self._num_tasks

    def put(self, caller: str, task: Task, cost: float = 1.0) -> None:
        """Queue a task of this caller's. What it costs is in any unit, the same for all."""
        self._tasks_of(caller)[task] = cost
        self._num_tasks += 1
        self._rank(caller)

    def put_back(self, caller: str, task: Task, cost: float = 1.0) -> None:
        """Queue a task before all others of its caller's. It is paid for again."""
        tasks = self._tasks_of(caller)
        tasks[task] = cost
        tasks.move_to_end(task, last=False)
        self._num_tasks += 1
        self._rank(caller)

    def take(self) -> Task | None:
        """The next task."""
        caller = self._next_caller()
        if caller is None:
            return None
        self._passed = 0 if caller == next(iter(self._since)) else self._passed + 1
        self._since[caller] = self._clock()
        self._since.move_to_end(caller)
        task, cost = self._callers[caller].popitem(last=False)
        self._num_tasks -= 1
        self._shares.charge({caller: cost})
        self._rank(caller)
        return task

    def discard(self, caller: str, task: Task) -> None:
        """Forget a task that nobody wants any more, with all that it holds; without effect on one that was taken."""
        tasks = self._callers.get(caller)
        if tasks is not None and tasks.pop(task, None) is not None:
            self._num_tasks -= 1
            self._rank(caller)

    def all(self) -> list[Task]:
        """Everything that waits."""
        return [task for tasks in self._callers.values() for task in tasks]

    def _next_caller(self) -> str | None:
        longest, since = next(iter(self._since.items()), (None, 0.0))
        is_starved = self._passed >= TURNS_BY_SHARE and self._clock() - since >= STARVED_SECONDS
        return longest if is_starved else self._turns.first

    def _tasks_of(self, caller: str) -> OrderedDict[Task, float]:
        if caller not in self._callers:
            self._callers[caller] = OrderedDict()
            self._since[caller] = self._clock()
            self._shares.join(caller)
        return self._callers[caller]

    def _rank(self, caller: str) -> None:
        """Put a caller where its first task belongs, or forget it."""
        tasks = self._callers[caller]
        if tasks:
            self._turns.put(caller, self._shares.account(caller) + next(iter(tasks.values())))
        else:
            del self._callers[caller], self._since[caller]
            self._turns.discard(caller)
            self._shares.leave(caller)
