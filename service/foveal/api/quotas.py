"""Each key's own quota: requests and tokens a minute, as two buckets that refill evenly. Off unless set."""

from __future__ import annotations

import time
from collections.abc import Callable

from foveal.errors import RateLimited

MINUTE = 60.0


class Bucket:
    """Holds a minute's worth and refills evenly; may be overdrawn, and is then closed until the debt is paid."""

    def __init__(self, per_minute: int, now: float) -> None:
        self._most = self._level = float(per_minute)
        self._at = now

    def seconds_until(self, amount: float, now: float) -> float:
        """Time until it holds so much; 0 if it does."""
        self._level = min(self._most, self._level + (now - self._at) * self._most / MINUTE)
        self._at = now
        return max(0.0, (amount - self._level) * MINUTE / self._most)

    def take(self, amount: float) -> None:
        """Take so much, also where that is more than there is."""
        self._level -= amount


class Quotas:
    """The buckets of all keys. 0 a minute means no limit. There are never more buckets than keys."""

    def __init__(
        self, requests_per_minute: int, tokens_per_minute: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._requests_per_minute, self._tokens_per_minute = requests_per_minute, tokens_per_minute
        self._clock = clock
        self._requests: dict[str, Bucket] = {}
        self._tokens: dict[str, Bucket] = {}

    def enter(self, key: str) -> None:
        """Count a request of this key's; raises RateLimited with the time after which another is let in."""
        now = self._clock()
        waits = {"requests": 0.0, "tokens": 0.0}
        if self._requests_per_minute:
            requests = self._requests.setdefault(key, Bucket(self._requests_per_minute, now))
            waits["requests"] = requests.seconds_until(1, now)
        if self._tokens_per_minute:
            waits["tokens"] = self._tokens.setdefault(key, Bucket(self._tokens_per_minute, now)).seconds_until(1, now)
        kind = max(waits, key=waits.__getitem__)
        if waits[kind] > 0:
            setting = f"--key-{kind}-per-minute"
            raise RateLimited(f"this key has used up its {kind} ({setting}); try again later", retry_after=waits[kind])
        if self._requests_per_minute:
            requests.take(1)

    def charge(self, key: str, tokens: int) -> None:
        """Count tokens that were let in for this key. What goes beyond the quota is a debt."""
        if self._tokens_per_minute:
            self._tokens.setdefault(key, Bucket(self._tokens_per_minute, self._clock())).take(tokens)
