"""Which candidates fill which budget, so that all that waits costs least: pure functions over numbers of tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from foveal.engine.ladder import Ladder
from foveal.types import TokenBudget

MAX_TRIED = 16
"""Budgets that one decision fills, of those that could cost least."""
TIE_SHARE = 0.05
"""Predicted times that differ by less than this share are equal: measurements differ as much."""


@dataclass(frozen=True)
class Pack:
    """Places in the queue of the entries that run together; no budget means eager, and why."""

    members: tuple[int, ...]
    num_tokens: int
    budget: TokenBudget | None
    reason: str = ""


class Candidate(NamedTuple):
    """An entry that may go into a pack, by its place among those that were offered."""

    place: int
    tokens: int


def cheapest_filling(
    pool: Sequence[Candidate], sizes: Sequence[int], ladder: Ladder, longest: float = math.inf
) -> tuple[float, Pack]:
    """The pack with the least cost of itself and of what it leaves, and that cost; of budgets up to the longest.

    Tries budgets by what they could cost at best.
    """
    waiting = sum(sizes)
    rate = ladder.rate_for(waiting / len(sizes))

    def cost_with(k: int, tokens: int) -> float:
        rest = waiting - tokens
        return ladder.costs[k] + max(ladder.cover(rest), rest * rate)

    sums = _reachable_sums(pool, ladder.max_tokens)
    options: list[tuple[float, int, int]] = []
    for k, budget in enumerate(ladder.budgets):
        if budget.tokens >= pool[0].tokens and budget.items and ladder.costs[k] <= longest:
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
    return best[0], best[2]


def _reachable_sums(pool: Sequence[Candidate], most: int) -> list[int]:
    """After each candidate, a set bit for every total of tokens that the pool up to it can make with its first."""
    mask = (2 << most) - 1
    reachable = [1 << pool[0].tokens]
    for candidate in pool[1:]:
        last = reachable[-1]
        reachable.append((last | (last << candidate.tokens)) & mask)
    return reachable


def _members(pool: Sequence[Candidate], sums: Sequence[int], tokens: int) -> list[Candidate]:
    """Candidates that make exactly this total, from as short a head of the pool as can make it."""
    members: list[Candidate] = [pool[0]]
    for i in range(len(pool) - 1, 0, -1):
        if not sums[i - 1] >> tokens & 1:
            members.append(pool[i])
            tokens -= pool[i].tokens
    return members


def _filled(pool: Sequence[Candidate], budget: TokenBudget) -> list[Candidate]:
    """The first candidate, then whatever fits in the order given."""
    members: list[Candidate] = []
    tokens = 0
    for candidate in pool:
        if tokens + candidate.tokens <= budget.tokens and len(members) < budget.items:
            members.append(candidate)
            tokens += candidate.tokens
    return members


def _by_size(pool: Sequence[Candidate]) -> list[Candidate]:
    return [pool[0], *sorted(pool[1:], key=lambda candidate: candidate.tokens, reverse=True)]


def _total(members: Sequence[Candidate]) -> int:
    return sum(candidate.tokens for candidate in members)
