"""`WaitingQueue`: the entries that wait for a worker, in an order that changes with time. Decides, and awaits nothing.

No call looks at all that waits. An entry's urgency grows with age for all alike, and faster while its deadline is near.
So the entries of a caller are in two orders that time does not change, *steady* and *near*, and an agenda says when an
entry passes from one to the other. Of each caller only the first entries compete:

- Callers whose first entries have one priority are in the order of their fair shares (`fairness`), and only the first
  of them competes with those of other priorities, by priority and age.
- First near entries compete by themselves as well: a near deadline is about that entry.
- Of four packs one goes to the first entry by age and priority alone, if that starves.

Here age counts from when the caller was last served, if that is later than the entry's arrival.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, islice

from foveal.engine.caller_queue import CallerQueue, in_turns, order_key
from foveal.engine.demand import nobody
from foveal.engine.fairness import STARVED_SECONDS, TURNS_BY_SHARE, FairShares
from foveal.engine.items import Entry
from foveal.engine.packing import DEADLINE_SECONDS, MAX_CONSIDERED, urgency
from foveal.engine.sorted_items import SortedItems, some

MAX_LEAD_TOKENS = 16_384.0
"""How far a caller's use may be ahead of or behind its share and be remembered: a largest image."""


class WaitingQueue:
    """Keeps entries in order, and picks those of which the next pack is made."""

    def __init__(self) -> None:
        self.num_tokens = 0
        """Of all that wait."""
        self._caller_of: OrderedDict[Entry, CallerQueue] = OrderedDict()  # in the order of arrival
        self._callers: dict[str, CallerQueue] = {}
        self._shares = FairShares(MAX_LEAD_TOKENS)
        self._levels: dict[int, SortedItems[CallerQueue]] = {}
        self._level_order: SortedItems[int] = SortedItems()
        self._near: SortedItems[CallerQueue] = SortedItems()
        self._by_age: SortedItems[CallerQueue] = SortedItems()
        self._passed = 0
        """Packs since one had an entry of the caller who is first by age and priority alone."""
        self._agenda: SortedItems[Entry] = SortedItems()
        self._now = -math.inf

    def __len__(self) -> int:
        return len(self._caller_of)

    @property
    def oldest(self) -> Entry | None:
        """What has waited longest."""
        return next(iter(self._caller_of), None)

    def put(self, entry: Entry) -> None:
        """Queue an entry that arrived."""
        self.num_tokens += entry.num_tokens
        self._rank(self._place(entry))
        entry.demand.changed = partial(self._move, entry)

    def put_back(self, entries: Sequence[Entry]) -> None:
        """Queue entries again that were taken. They arrived before those that wait."""
        for entry in reversed(entries):
            self.put(entry)
            self._caller_of.move_to_end(entry, last=False)

    def discard(self, entry: Entry) -> None:
        """Leave out an entry that nobody wants any more; without effect on one that was taken."""
        if entry in self._caller_of:
            self._remove(entry)

    def pop_all(self) -> list[Entry]:
        """Take out everything."""
        entries = list(self._caller_of)
        self._remove(*entries)
        return entries

    def pop_late(self, now: float) -> list[Entry]:
        """Bring the order up to now; takes out and returns what would come too late for all who wait for it."""
        self._now, late = now, []
        while (moment := self._agenda.least) is not None and moment <= now:
            entry = some(self._agenda.first)
            if entry.demand.is_late(now):
                self._remove(entry)
                late.append(entry)
            else:
                self._move(entry)
        return late

    def candidates(self, now: float, most: int = MAX_CONSIDERED) -> list[Entry]:
        """The entry that goes next, then those that may go with it, in the order of their turns.

        What was cancelled a moment ago is left out, and forgotten.
        """
        while (first := self._first(now)) is not None and not first.is_wanted:
            self._remove(first)
        if first is None:
            return []
        found, gone = [first], list[Entry]()
        for entry in self._companions(first, now, most):
            (found if entry.is_wanted else gone).append(entry)
            if len(found) == most:
                break
        self._remove(*gone)
        return found

    def take(self, entries: Sequence[Entry], now: float) -> None:
        """Take out entries that go to a worker, on their callers' accounts."""
        tokens: Counter[str] = Counter()
        eldest = self._by_age.first
        self._passed = 0 if eldest in {self._caller_of[entry] for entry in entries} else self._passed + 1
        for entry in entries:
            caller = self._caller_of[entry]
            caller.served = now
            tokens[caller.name] += entry.num_tokens
        self._shares.charge(tokens)
        self._remove(*entries)

    # ------------------------------------------------------------ whose turn it is

    def _first(self, now: float) -> Entry | None:
        """The entry that goes next."""
        if (starved := self._starved(now)) is not None:
            return starved
        level, near = self._level_order.first, self._near.first
        if level is None:
            return None
        caller = some(self._levels[level].first)
        head = some(caller.first(now))
        if near is None:
            return head
        hurried = some(near.near.first)
        is_first = urgency(hurried, near.since(hurried), now) > urgency(head, caller.since(head), now)
        return hurried if is_first else head

    def _starved(self, now: float) -> Entry | None:
        """The first entry by age and priority alone, where the shares have passed it over for too long."""
        eldest = self._by_age.first
        if eldest is None or self._passed < TURNS_BY_SHARE:
            return None
        head = some(eldest.first(now))
        return head if now - eldest.since(head) >= STARVED_SECONDS else None

    def _companions(self, first: Entry, now: float, most: int) -> Iterator[Entry]:
        """The others: near deadlines and higher priorities first, and those of one priority by their shares."""
        accounts = ((caller, self._shares.account(caller.name)) for caller in self._in_turn(most))
        return (entry for entry in in_turns(accounts, now) if entry is not first)

    def _in_turn(self, most: int) -> Iterable[CallerQueue]:
        """Callers: those with near deadlines, then by priority and share."""
        by_share = (caller for level in self._level_order for caller in self._levels[level])
        return dict.fromkeys(islice(chain(self._near, by_share), 2 * most)) if self._near else by_share

    # ------------------------------------------------------------ places

    def _place(self, entry: Entry) -> CallerQueue:
        """Put an entry where it belongs now, and note until when. Its caller must be ranked after this."""
        caller = self._callers.get(entry.caller)
        if caller is None:
            caller = self._callers[entry.caller] = CallerQueue(entry.caller)
            self._shares.join(caller.name)
        self._caller_of[entry] = caller
        deadline, until = entry.deadline, entry.demand.last_deadline
        order = caller.steady
        if deadline is not None and self._now < deadline:
            is_near = self._now >= deadline - DEADLINE_SECONDS
            order, until = (caller.near, deadline) if is_near else (caller.steady, deadline - DEADLINE_SECONDS)
        order.put(entry, order_key(entry, entry.arrival, self._now, is_near=order is caller.near))
        if until is not None:
            self._agenda.put(entry, until)
        return caller

    def _remove(self, *entries: Entry) -> None:
        """Take entries out."""
        touched: dict[CallerQueue, None] = {}
        for entry in entries:
            touched[self._unplace(entry)] = None
            del self._caller_of[entry]
            entry.demand.changed = nobody
            self.num_tokens -= entry.num_tokens
        self._rank(*touched)

    def _move(self, entry: Entry) -> None:
        """An entry's deadline has come near or has passed, or those who wait for it are others than before."""
        before = self._unplace(entry)
        self._rank(before, self._place(entry))

    def _unplace(self, entry: Entry) -> CallerQueue:
        """Take an entry out of all orders. Its caller must be ranked after this."""
        caller = self._caller_of[entry]
        for order in (caller.steady, caller.near, self._agenda):
            order.discard(entry)
        return caller

    def _rank(self, *callers: CallerQueue) -> None:
        """Put callers where their first entries belong, or forget them."""
        levels: dict[int, None] = {}
        for caller in callers:
            hurried, head = caller.near.first, caller.first(self._now)
            if hurried is None:
                self._near.discard(caller)
            else:
                self._near.put(caller, order_key(hurried, caller.since(hurried), self._now, is_near=True))
            left, caller.level = caller.level, None if head is None else head.priority
            if left is not None and left != caller.level:
                self._levels[left].discard(caller)
                levels[left] = None
            if head is not None:
                finish = self._shares.account(caller.name) + head.num_tokens
                self._by_age.put(caller, order_key(head, caller.since(head), self._now, is_near=False))
                self._levels.setdefault(head.priority, SortedItems()).put(caller, finish)
                levels[head.priority] = None
            else:
                self._by_age.discard(caller)
            if head is None and self._callers.pop(caller.name, None) is not None:
                self._shares.leave(caller.name)
        for level in levels:
            self._rank_level(level)

    def _rank_level(self, priority: int) -> None:
        """Put a priority where the first of its callers belongs."""
        caller = self._levels[priority].first
        if caller is None:
            del self._levels[priority]
            self._level_order.discard(priority)
        else:
            head = some(caller.first(self._now))
            self._level_order.put(priority, order_key(head, caller.since(head), self._now, is_near=False))
