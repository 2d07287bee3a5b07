"""`Estimates`: what one worker's images take, from what it measured at start and from what its packs took lately."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from foveal.engine.items import Entry
from foveal.engine.ladder import Ladder
from foveal.engine.pace import Pace, kind_of
from foveal.engine.packing import predicted_milliseconds
from foveal.engine.sent import SentPack
from foveal.ipc.messages import LeastCost

LEAST_SHARE = 0.7
"""Of a measured least cost: a processor's clock may have been low when it was measured."""
QUICKEST_SHARE = 0.5
"""Of a measured time, where there is no least cost: on a GPU."""
LATELY_SHARE = 0.75
"""Of the median of what was measured lately: the next may be quicker."""
UNFINISHED_FACTOR = 1.5
"""What was given up after some time would have taken longer still; how much longer nobody knows."""


class _Size(NamedTuple):
    num_tokens: int
    num_patches: int
    arrival: float = 0.0
    deadline: float | None = None
    priority: int = 0
    max_company: int = 1


class Estimates:
    """Seconds; 0 where nothing was measured."""

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self.ladder = Ladder(())
        self.least: LeastCost | None = None

    def begin_anew(self, ladder: Ladder, least: LeastCost | None) -> None:
        """Costs were measured."""
        self.ladder, self.least = ladder, least
        self._pace.forget()

    def least_seconds(self, num_tokens: int, num_patches: int) -> float:
        """No image of this size takes less, in whatever company."""
        if self.least is not None:
            return LEAST_SHARE * self.least.milliseconds(num_patches) / 1000
        if not self.ladder.is_measured:
            return 0.0
        attention = self.ladder.attention.ms_per_patch2 * num_patches**2
        return QUICKEST_SHARE * (self.ladder.rate * num_tokens + attention) / 1000

    def seconds_lately(self, num_tokens: int, num_patches: int) -> float:
        """As packs of about this size took in the last minute."""
        fits = self.ladder.smallest_for(num_tokens, 1) is not None
        budget = self.ladder.budgets[self.ladder.cheapest_for(num_tokens, 1)] if fits else None
        share = self._pace.lately(kind_of(budget.tokens if budget else 0, num_tokens))
        predicted = predicted_milliseconds([_Size(num_tokens, num_patches)], budget, self.ladder)
        return 0.0 if share is None else LATELY_SHARE * share * predicted / 1000

    def least_of(self, entries: Iterable[Entry]) -> float:
        """Of some together."""
        return sum(self.least_seconds(entry.num_tokens, entry.num_patches) for entry in entries)

    def least_left(self, packs: Iterable[SentPack], now: float) -> float:
        """Of packs in hand, which run one after the other."""
        left = 0.0
        for i, pack in enumerate(packs):
            whole = self.least_of(pack.entries)
            left += max(0.0, whole - (now - pack.sent)) if i == 0 else whole
        return left

    def took(self, pack: SentPack, seconds: float) -> None:
        """A pack is done."""
        self._pace.note(pack.kind, pack.milliseconds, seconds * 1000)

    def gave_up(self, pack: SentPack, seconds: float) -> None:
        """A pack was left unfinished: how long it would have taken is known from below only."""
        known = self._pace.lately(pack.kind) or 0.0
        took = UNFINISHED_FACTOR * seconds * 1000
        if took > known * pack.milliseconds:
            self._pace.note(pack.kind, pack.milliseconds, took)
