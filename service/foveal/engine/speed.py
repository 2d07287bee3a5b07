"""What the last images tell of the next: how fast they were encoded, how large they were."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

SPEED_MEMORY_SECONDS = 10.0
MEMORY_IMAGES = 16
"""About so many of the last tell how large the next is expected to be."""


class Speed:
    """Tokens a second of the last seconds, forgetting exponentially."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._tokens = 0.0
        self._at = self._since = clock()

    def count(self, tokens: int) -> None:
        """Note that tokens were encoded."""
        now = self._clock()
        self._tokens = self._tokens * math.exp((self._at - now) / SPEED_MEMORY_SECONDS) + tokens
        self._at = now

    def seconds_for(self, tokens: int) -> float:
        """Time that this many tokens take at the measured speed; 1 s before anything was measured."""
        window = min(SPEED_MEMORY_SECONDS, max(self._clock() - self._since, 1.0))
        return tokens * window / self._tokens if self._tokens > 0 else 1.0


class TypicalSize:
    """Tokens of an image, as those have that ask to be let in."""

    def __init__(self) -> None:
        self._tokens = 0.0

    def note(self, tokens: int) -> None:
        """One of so many asks."""
        self._tokens += (tokens - self._tokens) / MEMORY_IMAGES if self._tokens else tokens

    @property
    def tokens(self) -> int:
        """What images had of late; 1 before there was one."""
        return max(1, round(self._tokens))
