"""The ladder of token budgets and what its steps cost; the inferred one has fine steps.

Every padded row is real compute. Steps of 32 to 512, 64 to 1024, 128 to 2048, 256 to 4096, 512 to 5120: padding stays
below 6 % for a lone image of a usual mixture, where powers of two give a third and more (docs/performance.md). Where
all images have one size, budgets are multiples of it, and a pack of up to eight of them has no padding at all.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate

from foveal.types import TokenBudget

STEPS = ((32, 512), (64, 1024), (128, 2048), (256, 4096), (512, 5120))
MAX_BUDGET_TOKENS = STEPS[-1][1]
"""Above this an image is bound by arithmetic, not by launches, and runs eager as fast."""
COUNTS_OF_A_STEP = 8
"""With images of one size: numbers of images before the step between them doubles."""
MIN_SHARE = 0.1
"""A budget without its attention costs at least this share of its time, however large the coefficient."""
NOISE_SHARE = 0.01
"""Measured times that differ by less than this share are equal, and the smaller budget is taken."""


@dataclass(frozen=True)
class Attention:
    """Time of attention, which grows with the squared length of each item and not with the budget.

    A budget is measured full of images of `typical_patches`. Its time holds the attention of those,
    `ms_per_patch2 x budget's patches x typical_patches`, since n images of S patches have n x S² = (n x S) x S.
    A run costs its budget's time without that, plus `ms_per_patch2 x sum of num_patches²` of its own items.
    """

    ms_per_patch2: float = 0.0
    typical_patches: int = 0
    merge_area: int = 4
    """Patches of a token."""

    def measured(self, tokens: int) -> float:
        """Milliseconds of attention within the measured time of a budget."""
        patches = tokens * self.merge_area
        return self.ms_per_patch2 * patches * min(self.typical_patches, patches)


@dataclass(frozen=True)
class Ladder:
    """The budgets of a worker, ascending by tokens, and what they cost: their tokens while none was measured."""

    budgets: tuple[TokenBudget, ...]
    attention: Attention = field(default_factory=Attention)

    @property
    def max_tokens(self) -> int:
        """What the largest budget holds."""
        return self.budgets[-1].tokens if self.budgets else 0

    @cached_property
    def max_items(self) -> int:
        """Items of the budget that holds most."""
        return max((b.items for b in self.budgets), default=0)

    @cached_property
    def is_measured(self) -> bool:
        """True if costs are milliseconds."""
        return any(b.milliseconds > 0 for b in self.budgets)

    @cached_property
    def costs(self) -> tuple[float, ...]:
        """Milliseconds of each budget without attention; per token as its nearest measured one's where it has none."""
        known = {b.tokens: self._without_attention(b) for b in self.budgets if b.milliseconds > 0}
        if not known:
            return self._tokens
        nearest = {t: min((abs(k - t), k) for k in known)[1] for t in self._tokens}
        return tuple(known[near] * tokens / near for tokens, near in nearest.items())

    @cached_property
    def rate(self) -> float:
        """Cost of a token in the budget where it is cheapest."""
        return min((c / b.tokens for c, b in zip(self.costs, self.budgets, strict=True)), default=1.0)

    def rate_for(self, mean_tokens: float) -> float:
        """The same for items of a mean size, of which a budget holds no more than its number of items."""
        steps = zip(self.costs, self.budgets, strict=True)
        return min(cost / min(b.tokens, b.items * mean_tokens) for cost, b in steps if b.items)

    def smallest_for(self, num_tokens: int, num_items: int) -> TokenBudget | None:
        """The smallest budget that holds this much, or None."""
        first = bisect_left(self._tokens, num_tokens)
        return next((b for b in self.budgets[first:] if b.items >= num_items), None)

    def cheapest_for(self, num_tokens: int, num_items: int) -> int:
        """Place of the smallest budget that holds this much and costs no more than noise above the least."""
        first = bisect_left(self._tokens, num_tokens)
        found = self._cheapest.get((first, num_items))
        if found is None:
            able = [k for k in range(first, len(self.budgets)) if self.budgets[k].items >= num_items]
            most = min(self.costs[k] for k in able) * (1 + NOISE_SHARE)
            found = self._cheapest[first, num_items] = next(k for k in able if self.costs[k] <= most)
        return found

    def cover(self, num_tokens: int) -> float:
        """Estimated cost of so many tokens, could they be divided at will over the budgets."""
        if num_tokens <= 0:
            return 0.0
        step = bisect_left(self._tokens, num_tokens)
        return self._covers[step] if step < len(self._covers) else max([num_tokens * self.rate, *self._covers[-1:]])

    def _without_attention(self, budget: TokenBudget) -> float:
        whole = budget.milliseconds
        return max(whole - self.attention.measured(budget.tokens), MIN_SHARE * whole)

    @cached_property
    def _cheapest(self) -> dict[tuple[int, int], int]:
        """What `cheapest_for` found: bounded by budgets times items."""
        return {}

    @cached_property
    def _tokens(self) -> tuple[int, ...]:
        return tuple(b.tokens for b in self.budgets)

    @cached_property
    def _covers(self) -> list[float]:
        """For each budget's tokens: one run, or several where those are cheaper."""
        covers = list(accumulate(reversed(self.costs), min))[::-1]
        for i, tokens in enumerate(self._tokens):
            for part, cost in zip(self._tokens[:i], self.costs, strict=False):
                if (rest := bisect_left(self._tokens, tokens - part)) < i:
                    covers[i] = min(covers[i], cost + covers[rest])
        return covers


def inferred_budgets(max_image_tokens: int, fixed_tokens: int | None = None) -> tuple[int, ...]:
    """Ascending budgets up to the largest image, and the largest image itself where it ends the ladder early.

    `fixed_tokens`: tokens of every image, where they all have as many. Then the budgets are multiples of that.
    """
    if fixed_tokens is not None:
        return tuple(count * fixed_tokens for count in _counts(max(1, MAX_BUDGET_TOKENS // fixed_tokens)))
    most = min(max_image_tokens, MAX_BUDGET_TOKENS)
    budgets: list[int] = []
    start = 0
    for step, end in STEPS:
        budgets += range(start + step, end + 1, step)
        start = end
    return (*(b for b in budgets if b < most), most)


def _counts(most: int) -> list[int]:
    """Images of each budget up to `most`: all numbers to 8, then every second to 16, every fourth to 32, and so on."""
    counts: list[int] = []
    count, step = 0, 1
    while (count := count + step) <= most:
        counts.append(count)
        if count == COUNTS_OF_A_STEP * step:
            step *= 2
    return counts
