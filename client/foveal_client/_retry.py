"""Whether to try again, and how long to wait: pure functions; clock, chance and sleep are passed in."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from foveal_client._errors import APIStatusError, ConnectionFailed, ConnectionLost, DeadlineExceeded, FovealError

MIN_WAIT_SECONDS = 0.5
MAX_WAIT_SECONDS = 8.0


@dataclass(frozen=True)
class Clock:
    """Time and chance as the clients see them. Tests pass one of their own."""

    now: Callable[[], float] = time.monotonic
    """Seconds since any fixed moment."""
    random: Callable[[], float] = random.random
    """Evenly in [0, 1)."""
    sleep: Callable[[float], None] = time.sleep  # noqa: TID251 - the synchronous client blocks its caller by contract
    sleep_async: Callable[[float], Awaitable[None]] = asyncio.sleep


def should_retry(error: FovealError) -> bool:
    """True for connections that were refused or broke before an answer, for 429, and for a retryable 503."""
    if isinstance(error, ConnectionFailed):
        return error.retryable
    if isinstance(error, APIStatusError):
        return error.status == 429 or (error.status == 503 and error.retryable)
    return False


def wait_seconds(error: FovealError, retries_done: int, chance: float) -> float:
    """Seconds before the next try: the server's word, else a random length that may double with every retry.

    A connection that broke is first replaced at once: the server had closed it just as it was used again.
    `chance` in [0, 1) spreads callers, so that they do not come back together.
    """
    if isinstance(error, APIStatusError) and error.retry_after is not None:
        return error.retry_after
    if isinstance(error, ConnectionLost) and retries_done == 0:
        return 0.0
    # The exponent is bounded first: a float overflows at 2**1024, long after the cap has won.
    longest = min(MAX_WAIT_SECONDS, MIN_WAIT_SECONDS * 2.0 ** min(retries_done + 1, 16))
    return MIN_WAIT_SECONDS + chance * (longest - MIN_WAIT_SECONDS)


@dataclass
class Tries:
    """One call's patience: its deadline (a moment of `clock`), and the retries it has left."""

    deadline: float
    max_retries: int
    clock: Clock
    retries_done: int = 0
    max_hops: int = 0
    """Times that it may turn to another server at once; these are no retries."""

    def hop(self) -> bool:
        """True if the next try may go to another server now, which is counted here."""
        self.max_hops -= 1
        return self.max_hops >= 0 and self.clock.now() < self.deadline

    def seconds_left(self) -> float:
        """What remains until the deadline; raises DeadlineExceeded when nothing does."""
        left = self.deadline - self.clock.now()
        if left <= 0:
            raise DeadlineExceeded("the call's timeout has passed")
        return left

    def wait_after(self, error: FovealError) -> float:
        """Seconds to wait before the next try, which is counted here; raises `error` when there is to be none.

        A wait that would end past the deadline is not begun: the caller learns now what it would learn then.
        """
        if self.retries_done >= self.max_retries or not should_retry(error):
            raise error
        wait = wait_seconds(error, self.retries_done, self.clock.random())
        if wait >= self.deadline - self.clock.now():
            raise error
        self.retries_done += 1
        return wait
