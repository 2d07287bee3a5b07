"""Which entries run together, and at which budget: pure functions over plain data.

A pack is chosen when a worker can start it, from everything that waits then. The most urgent entry always goes.
The others and the budget are chosen so that all that waits is expected to cost least: the measured time of this
run, and the estimated time of what it leaves behind. Of equal choices the one with more tokens wins, and of equal
fillings the one with more urgent entries.

How long an entry can wait: urgency is priority + seconds waited + at most DEADLINE_STEPS for a near deadline. So
another goes before it as the most urgent only if it arrived within AGEING_SECONDS x (its lead in priority +
DEADLINE_STEPS) after it. At most as many packs start before an entry's own as there are such others. With equal
priorities and no deadlines these are the entries that were there before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

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
MAX_TRIED = 16
"""Budgets that one decision fills, of those that could cost least."""
TIE_SHARE = 0.05
"""Predicted times that differ by less than this share are equal: measurements differ as much."""


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


@dataclass(frozen=True)
class Pack:
    """Places in the queue of the entries that run together; no budget means eager, and why."""

    members: tuple[int, ...]
    num_tokens: int
    budget: TokenBudget | None
    reason: str = ""


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
    if ladder.smallest_for(entries[first].num_tokens, 1) is None:
        reason = "oversize" if ladder.budgets else "no_budgets"
        return Pack((first,), entries[first].num_tokens, None, reason)
    if len(entries) == 1:
        tokens = entries[first].num_tokens
        return Pack((first,), tokens, ladder.budgets[ladder.cheapest_for(tokens, 1)])
    sizes = [tokens for i in order if (tokens := entries[i].num_tokens) <= ladder.max_tokens]
    return _cheapest(_companions(entries, order, ladder), sizes, ladder)


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


class _Candidate(NamedTuple):
    place: int
    tokens: int


def _companions(entries: Sequence[Packable], order: Sequence[int], ladder: Ladder) -> list[_Candidate]:
    """The most urgent entry and those behind it that could join; any of them together respect max_company."""
    first = entries[order[0]]
    room = min(ladder.max_items, first.max_company)
    space = ladder.max_tokens - first.num_tokens
    pool = [_Candidate(order[0], first.num_tokens)]
    for i in order[1:]:
        if len(pool) >= room:
            break
        if entries[i].num_tokens <= space and entries[i].max_company >= room:
            pool.append(_Candidate(i, entries[i].num_tokens))
    return pool


def _cheapest(pool: Sequence[_Candidate], sizes: Sequence[int], ladder: Ladder) -> Pack:
    """The pack with the least cost of itself and of what it leaves. Tries budgets by what they could cost at best."""
    waiting = sum(sizes)
    rate = ladder.rate_for(waiting / len(sizes))

    def cost_with(k: int, tokens: int) -> float:
        rest = waiting - tokens
        return ladder.costs[k] + max(ladder.cover(rest), rest * rate)

    sums = _reachable_sums(pool, ladder.max_tokens)
    options: list[tuple[float, int, int]] = []
    for k, budget in enumerate(ladder.budgets):
        if budget.tokens >= pool[0].tokens and budget.items:
            fullest = (sums[-1] & ((2 << budget.tokens) - 1)).bit_length() - 1
            options.append((cost_with(k, fullest), -fullest, k))
    options.sort()
    best: tuple[float, int, Pack] | None = None
    for cost, fullest, k in options[:MAX_TRIED]:
        if best is not None and best[:2] <= (cost, fullest):
            break
        budget = ladder.budgets[k]
        members = _members(pool, sums, -fullest)
        if len(members) > budget.items:
            members = max(_filled(pool, budget), _filled(_by_size(pool), budget), key=_total)
        tokens = _total(members)
        k = ladder.cheapest_for(tokens, len(members))
        cost = cost_with(k, tokens)
        if best is None or (cost, -tokens) < best[:2]:
            best = cost, -tokens, Pack(tuple(m.place for m in members), tokens, ladder.budgets[k])
    assert best is not None, "the most urgent entry fits no budget: this is a bug"
    return best[2]


def _reachable_sums(pool: Sequence[_Candidate], most: int) -> list[int]:
    """After each candidate, a set bit for every total of tokens that the pool up to it can make with its first."""
    mask = (2 << most) - 1
    reachable = [1 << pool[0].tokens]
    for candidate in pool[1:]:
        last = reachable[-1]
        reachable.append((last | (last << candidate.tokens)) & mask)
    return reachable


def _members(pool: Sequence[_Candidate], sums: Sequence[int], tokens: int) -> list[_Candidate]:
    """Candidates that make exactly this total, from as short a head of the pool as can make it."""
    members: list[_Candidate] = [pool[0]]
    for i in range(len(pool) - 1, 0, -1):
        if not sums[i - 1] >> tokens & 1:
            members.append(pool[i])
            tokens -= pool[i].tokens
    return members


def _filled(pool: Sequence[_Candidate], budget: TokenBudget) -> list[_Candidate]:
    """The first candidate, then whatever fits in the order given."""
    members: list[_Candidate] = []
    tokens = 0
    for candidate in pool:
        if tokens + candidate.tokens <= budget.tokens and len(members) < budget.items:
            members.append(candidate)
            tokens += candidate.tokens
    return members


def _by_size(pool: Sequence[_Candidate]) -> list[_Candidate]:
    return [pool[0], *sorted(pool[1:], key=lambda candidate: candidate.tokens, reverse=True)]


def _total(members: Sequence[_Candidate]) -> int:
    return sum(candidate.tokens for candidate in members)
