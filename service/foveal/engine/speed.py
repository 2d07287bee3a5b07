"""What the last images tell of the next: how fast they were encoded, how large they were."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

SPEED_MEMORY_SECONDS = 10.0
MEMORY_IMAGES = 16
"""About so many of the last tell how large the next is expected to be."""
MEMORY_FINDS, FIRST_SHARE = 32, 0.5
"""About so many of the last tell whether the next is worth reading; before the first, this many are taken to be."""
LEAST_SHARE = 1 / 16
"""To read and hash a picture costs about this part of what encoding a small one does."""
READ_ALL_THE_SAME = 8
"""Every so manieth body is read in any case, or nobody would learn that pictures come again."""


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


class Finds:
    """How many of the pictures that came while the server was full were in the cache or under way."""

    def __init__(self) -> None:
        self._share = FIRST_SHARE
        self._passed_over = 0

    def note(self, found: bool) -> None:
        """One was looked up."""
        self._share += (found - self._share) / MEMORY_FINDS

    def is_worth_reading(self) -> bool:
        """True if the next body may well be found; now and then in any case."""
        if self._share >= LEAST_SHARE:
            return True
        self._passed_over = (self._passed_over + 1) % READ_ALL_THE_SAME
        return not self._passed_over
