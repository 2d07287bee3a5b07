"""What the last images tell of the next: how fast they were encoded, how large they were."""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable

SPEED_MEMORY_SECONDS = 10.0
MAX_CALLERS = 1024
"""Those who asked last, of whom is known what they send."""
SMALL_TOKENS = 64
"""An image of 256 x 256 has as many: it is not counted as less than it is."""
KNOWN_SHARE, UNKNOWN_SHARE = 1 / 32, 1 / 256
"""Of the limit on tokens, expected at most of an image of a caller who is known, or is not. After large images, or
beside another's, some requests for small ones would else seem to fill the server before one of them was read."""
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


class TypicalSizes:
    """What each caller's images had of late, and those of all callers together."""

    def __init__(self, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self._all = TypicalSize()
        self._callers: OrderedDict[str, TypicalSize] = OrderedDict()

    def note(self, caller: str, tokens: int) -> None:
        """One of this caller's asks to be let in."""
        self._all.note(tokens)
        self._callers.setdefault(caller, TypicalSize()).note(tokens)
        self._callers.move_to_end(caller)
        if len(self._callers) > MAX_CALLERS:
            self._callers.popitem(last=False)

    def expected(self, caller: str) -> int:
        """Tokens to count for an image of this caller's that was not read yet."""
        own = self._callers.get(caller)
        size, share = (own, KNOWN_SHARE) if own is not None else (self._all, UNKNOWN_SHARE)
        return min(size.tokens, max(SMALL_TOKENS, int(self._max_tokens * share)))


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
