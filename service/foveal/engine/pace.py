"""`Pace`: how long packs took of late, against what was predicted when the worker started.

A machine may have become busier since, or was busy then. The median of the last packs of a kind counts, so that one
that was held up does not, and old ones are forgotten: what was slow for a while is tried again.
"""

from __future__ import annotations

import math
import statistics
import time
from collections import deque
from collections.abc import Callable

SAMPLES = 8
FORGET_SECONDS = 60.0

Kind = int
"""Packs that cost alike: a budget's tokens, or the negative number of bits of an eager pack's tokens."""


def kind_of(budget_tokens: int, num_tokens: int) -> Kind:
    """0 budget tokens is eager."""
    return budget_tokens or -num_tokens.bit_length()


class Pace:
    """Of one worker. Shares are of the predicted time."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._shares: dict[Kind, deque[tuple[float, float]]] = {}
        self._last: deque[float] = deque(maxlen=SAMPLES)
        self._medians: dict[Kind, tuple[float, float | None]] = {}
        """What `lately` found, and until when that holds."""

    def forget(self) -> None:
        """Predictions are new."""
        self._shares.clear()
        self._medians.clear()
        self._last.clear()

    def note(self, kind: Kind, predicted: float, took: float) -> None:
        """A pack took so long, in the same unit."""
        if predicted > 0:
            share = took / predicted
            self._shares.setdefault(kind, deque(maxlen=SAMPLES)).append((self._clock(), share))
            self._last.append(share)
            self._medians.pop(kind, None)

    def knows(self, kind: Kind) -> bool:
        """True once one of this kind was run."""
        return kind in self._shares

    def lately(self, kind: Kind) -> float | None:
        """Median share of this kind's last packs; None where none ran of late."""
        now = self._clock()
        until, median = self._medians.get(kind, (-math.inf, None))
        if now >= until:
            fresh = [(at, share) for at, share in self._shares.get(kind, ()) if now - at < FORGET_SECONDS]
            until = min((at + FORGET_SECONDS for at, _ in fresh), default=math.inf)
            median = statistics.median(share for _, share in fresh) if fresh else None
            self._medians[kind] = until, median
        return median

    def slowness(self, kind: Kind) -> float:
        """What a prediction is multiplied with to be no promise: of its own kind, else of all, and at least 1."""
        own = self.lately(kind)
        if own is None:
            own = statistics.median(self._last) if self._last else 1.0
        return max(1.0, own)
