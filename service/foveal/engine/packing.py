"""Which entries run together, and at which budget: pure functions over plain data.

A pack is chosen when a worker can start it, from everything that waits then. The most urgent entry always goes.
The others and the budget are chosen so that all that waits is expected to cost least: the measured time of this
run, and the estimated time of what it leaves behind. Of equal choices the one with more tokens wins, and of equal
fillings the one with more urgent entries. Where runs are long, as on a CPU, a choice is equal only if it is not longer:
a small picture does not ride with a large one that saves nothing by it.

How long an entry can wait: urgency is priority + seconds waited + at most DEADLINE_STEPS for a near deadline. So
another goes before it as the most urgent only if it arrived within AGEING_SECONDS x (its lead in priority +
DEADLINE_STEPS) after it. At most as many packs start before an entry's own as there are such others. With equal
priorities and no deadlines these are the entries that were there before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from foveal.engine.filling import TIE_SHARE, Candidate, Pack, cheapest_filling
from foveal.engine.ladder import Ladder
from foveal.types import TokenBudget

AGEING_SECONDS = 1.0
"""Waiting this long is worth one step of priority."""
DEADLINE_SECONDS = 2.0
"""A deadline counts from this long before it."""
DEADLINE_STEPS = 4.0
"""Steps of priority that a deadline is worth when it has come."""
MAX_CONSIDERED = 128
"""Entries that one decision looks at; those behind are looked at by the next."""
LONG_MILLISECONDS = 100.0
"""Companions make a pack longer than this, or than its first entry alone, only where that saves time: who comes next
waits for it, and so do those in it.
"""


class Packable(Protocol):
    """What packing looks at. Times are of one monotonic clock, in seconds."""

    @property
    def num_tokens(self) -> int:
        """Output rows."""

    @property
    def num_patches(self) -> int:
        """Input rows."""

    @property
    def arrival(self) -> float:
        """When it was queued."""

    @property
    def deadline(self) -> float | None:
        """When it must be done."""

    @property
    def priority(self) -> int:
        """Larger first."""

    @property
    def max_company(self) -> int:
        """Items that its pack may have."""


def next_pack(
    entries: Sequence[Packable], ladder: Ladder, now: float, order: Sequence[int] | None = None
) -> Pack | None:
    """The pack that a free worker starts now; None when nothing waits. Never exceeds a capacity.

    `order`: places of the entries, most urgent first, where that is not by urgency alone (`fairness`).
    """
    if not entries:
        return None
    order = (order or urgent_order(entries, now))[:MAX_CONSIDERED]
    first = order[0]
    if len(entries) == 1 or ladder.smallest_for(entries[first].num_tokens, 1) is None:
        return lone_pack(entries[first].num_tokens, ladder, first)
    sizes = [tokens for i in order if (tokens := entries[i].num_tokens) <= ladder.max_tokens]
    pool = _companions(entries, order, ladder)
    cost, pack = cheapest_filling(pool, sizes, ladder)
    return _not_long(entries, pool, sizes, ladder, cost, pack) if ladder.is_measured else pack


def lone_pack(num_tokens: int, ladder: Ladder, place: int = 0) -> Pack:
    """The pack of one entry alone, at the cheapest budget; without one where it is larger than all."""
    if ladder.smallest_for(num_tokens, 1) is None:
        return Pack((place,), num_tokens, None, "oversize" if ladder.budgets else "no_budgets")
    return Pack((place,), num_tokens, ladder.budgets[ladder.cheapest_for(num_tokens, 1)])


def predicted_milliseconds(members: Sequence[Packable], budget: TokenBudget | None, ladder: Ladder) -> float:
    """Time of a run of these entries; in tokens where the ladder was not measured."""
    if budget is None:
        cost = ladder.rate * sum(entry.num_tokens for entry in members)
    else:
        cost = ladder.costs[ladder.budgets.index(budget)]
    if not ladder.is_measured:
        return cost
    return cost + ladder.attention.ms_per_patch2 * sum(entry.num_patches**2 for entry in members)


def least_finish(outstanding: Sequence[float], costs: Sequence[float], turn: int) -> int:
    """Which worker ends first: each has so much outstanding, and the pack costs it so much. Ties rotate by turn."""
    finish = [busy + cost for busy, cost in zip(outstanding, costs, strict=True)]
    least = min(finish)
    tied = [i for i, end in enumerate(finish) if end <= least * (1 + TIE_SHARE)]
    return tied[turn % len(tied)]


def urgent_order(entries: Sequence[Packable], now: float) -> list[int]:
    """Places of the entries, most urgent first."""
    urgencies = [urgency(entry, entry.arrival, now) for entry in entries]
    return sorted(range(len(entries)), key=urgencies.__getitem__, reverse=True)


def urgency(entry: Packable, since: float, now: float) -> float:
    """Priority, raised by age so that nobody starves, and by a deadline that is near."""
    steps = entry.priority + (now - since) / AGEING_SECONDS
    if entry.deadline is not None:
        left = min(max(entry.deadline - now, 0.0), DEADLINE_SECONDS)
        steps += DEADLINE_STEPS * (1 - left / DEADLINE_SECONDS)
    return steps


def _companions(entries: Sequence[Packable], order: Sequence[int], ladder: Ladder) -> list[Candidate]:
    """The most urgent entry and those behind it that could join; any of them together respect max_company."""
    first = entries[order[0]]
    room = min(ladder.max_items, first.max_company)
    space = ladder.max_tokens - first.num_tokens
    pool = [Candidate(order[0], first.num_tokens)]
    for i in order[1:]:
        if len(pool) >= room:
            break
        if entries[i].num_tokens <= space and entries[i].max_company >= room:
            pool.append(Candidate(i, entries[i].num_tokens))
    return pool


def _not_long(
    entries: Sequence[Packable],
    pool: Sequence[Candidate],
    sizes: Sequence[int],
    ladder: Ladder,
    cost: float,
    pack: Pack,
) -> Pack:
    """This pack, the cheapest; or one that is not long, where that costs no more."""

    def milliseconds(*places: int, budget: TokenBudget | None) -> float:
        return predicted_milliseconds([entries[i] for i in places], budget, ladder)

    first = pool[0]
    own = ladder.budgets[ladder.cheapest_for(first.tokens, 1)]
    most = max(LONG_MILLISECONDS, milliseconds(first.place, budget=own))
    if milliseconds(*pack.members, budget=pack.budget) <= most:
        return pack
    smallest = (ladder.budgets[ladder.cheapest_for(candidate.tokens, 1)] for candidate in pool)
    short = [
        candidate
        for candidate, budget in zip(pool, smallest, strict=True)
        if candidate is first or milliseconds(candidate.place, budget=budget) <= LONG_MILLISECONDS
    ]
    longest = max(LONG_MILLISECONDS, ladder.costs[ladder.budgets.index(own)])
    other_cost, other = cheapest_filling(short, sizes, ladder, longest)
    assert pack.budget is not None, "a pack without a budget has one member: this is a bug"
    saved = other_cost - cost
    return other if saved <= TIE_SHARE * ladder.costs[ladder.budgets.index(pack.budget)] else pack
