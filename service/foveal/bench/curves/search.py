"""Where latency turns up: the highest rate that keeps a limit, found in a bounded number of steps."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

GROWTH = 2.0
CLOSE = 1.1
"""The search ends when the least rate that fails is no more than this many times the highest that holds."""


class Trial(Protocol):
    """One step, as far as the search looks at it."""

    @property
    def p99_ms(self) -> float:
        """Of the answers that came."""

    @property
    def keeps_up(self) -> bool:
        """True if it answered as fast as it was asked."""

    @property
    def error_share(self) -> float:
        """Requests without an answer."""


@dataclass(frozen=True)
class Limit:
    """What holds, in milliseconds, and the words for it."""

    p99_ms: float
    rule: str

    def holds(self, trial: Trial) -> bool:
        """All answered, as fast as they came, and 99 of 100 within the limit."""
        return _is_whole(trial) and trial.p99_ms <= self.p99_ms


P50_TIMES, P99_TIMES = 3.0, 1.5


def limit_of(alone_p50_ms: float, alone_p99_ms: float, is_mixed: bool) -> Limit:
    """3 times the median of requests that came alone.

    Of mixed sizes, large pictures take longer than that even alone; then 1.5 times their p99, if that is more. Of one
    size never: there a high p99 of lone requests is the machine's noise, and must not widen the limit.
    """
    if is_mixed and P99_TIMES * alone_p99_ms > P50_TIMES * alone_p50_ms:
        return Limit(P99_TIMES * alone_p99_ms, f"{P99_TIMES:g} x p99 alone")
    return Limit(P50_TIMES * alone_p50_ms, f"{P50_TIMES:g} x p50 alone")


def search(measure: Callable[[float], Trial], limit: Limit, first: float, max_steps: int) -> tuple[float, int] | None:
    """The highest rate that held, and its place among the steps; None if none did.

    Doubles from `first` until a rate fails, then halves the gap (in ratio) until it is small or no step is left. While
    it grows, a rate that was kept up with and only missed the limit is tried once more: there one hiccup would cost
    the whole rest of the curve. If the first rate fails, it goes down.
    """
    good: tuple[float, int] | None = None
    bad, rate, is_second_try = math.inf, first, False
    for step in range(max_steps):
        trial = measure(rate)
        if limit.holds(trial):
            good = max(good or (0.0, 0), (rate, step))
        elif bad == math.inf and _is_whole(trial) and not is_second_try:
            is_second_try = True
            continue
        else:
            bad = min(bad, rate)
        is_second_try = False
        if good is None:
            rate = bad / GROWTH
        elif bad == math.inf:
            rate = good[0] * GROWTH
        elif bad / good[0] <= CLOSE:
            break
        else:
            rate = math.sqrt(bad * good[0])
    return good


def _is_whole(trial: Trial) -> bool:
    return trial.keeps_up and trial.error_share == 0
