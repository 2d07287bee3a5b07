"""Which entries run together, and at which budget: pure functions over plain data.

A pack is chosen when a worker can start it, from everything that waits then. Entries are considered by priority and
age; the first of them always goes, so nobody waits for more packs than there are entries before it. The rest of
the budget is filled with those behind it that still fit, and the budget is the cheapest per token of those that
filling can reach.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from foveal.types import TokenBudget

AGEING_SECONDS = 1.0
"""Waiting this long is worth one step of priority."""
MAX_CONSIDERED = 128
"""Entries that one decision looks at; those behind are looked at by the next."""


class Packable(Protocol):
    """What packing looks at."""

    @property
    def num_tokens(self) -> int:
        """Output rows."""

    @property
    def arrival(self) -> float:
        """When it was queued."""

    @property
    def priority(self) -> int:
        """Larger first."""

    @property
    def max_company(self) -> int:
        """Items that its pack may have."""


@dataclass(frozen=True)
class Ladder:
    """The budgets of a worker, ascending by tokens."""

    budgets: tuple[TokenBudget, ...]

    @property
    def max_tokens(self) -> int:
        """What the largest budget holds."""
        return self.budgets[-1].tokens if self.budgets else 0

    def smallest_for(self, num_tokens: int, num_items: int) -> TokenBudget | None:
        """The smallest budget that holds this much, or None."""
        first = bisect_left(self.budgets, num_tokens, key=lambda budget: budget.tokens)
        return next((b for b in self.budgets[first:] if b.items >= num_items), None)


@dataclass(frozen=True)
class Pack:
    """Places in the queue of the entries that run together; no budget means eager, and why."""

    members: tuple[int, ...]
    num_tokens: int
    budget: TokenBudget | None
    reason: str = ""


def next_pack(entries: Sequence[Packable], ladder: Ladder, now: float) -> Pack | None:
    """The pack that a free worker starts now; None when nothing waits. Never exceeds a capacity."""
    if not entries:
        return None
    order = sorted(range(len(entries)), key=lambda i: _urgency(entries[i], now), reverse=True)[:MAX_CONSIDERED]
    first = order[0]
    if ladder.smallest_for(entries[first].num_tokens, 1) is None:
        reason = "oversize" if ladder.budgets else "no_budgets"
        return Pack((first,), entries[first].num_tokens, None, reason)
    return _cheapest(_fillings(entries, order, ladder))


def _urgency(entry: Packable, now: float) -> float:
    """Priority, raised by age so that nobody starves."""
    return entry.priority + (now - entry.arrival) / AGEING_SECONDS


def _fillings(entries: Sequence[Packable], order: Sequence[int], ladder: Ladder) -> list[Pack]:
    """For every budget that holds the first entry, the pack that filling it in order gives."""
    packs: list[Pack] = []
    for budget in ladder.budgets:
        if budget.tokens < entries[order[0]].num_tokens:
            continue
        members, tokens = _fill(entries, order, budget)
        fit = ladder.smallest_for(tokens, len(members))
        assert fit is not None, "what was filled into a budget fits none: this is a bug"
        packs.append(Pack(members, tokens, fit))
        if len(members) == len(order):
            break
    return packs


def _fill(entries: Sequence[Packable], order: Sequence[int], budget: TokenBudget) -> tuple[tuple[int, ...], int]:
    members: list[int] = []
    tokens, company = 0, budget.items
    for i in order:
        entry = entries[i]
        joins = min(company, entry.max_company)
        if tokens + entry.num_tokens <= budget.tokens and len(members) + 1 <= joins:
            members.append(i)
            tokens += entry.num_tokens
            company = joins
    return tuple(members), tokens


def _cheapest(packs: Sequence[Pack]) -> Pack:
    """Least measured time per token; of equal ones the largest. Unmeasured budgets cost their tokens."""

    def cost_per_token(pack: Pack) -> tuple[float, int]:
        assert pack.budget is not None
        return (pack.budget.milliseconds or pack.budget.tokens) / pack.num_tokens, -pack.num_tokens

    return min(packs, key=cost_per_token)
