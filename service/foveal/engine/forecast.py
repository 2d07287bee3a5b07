"""`Forecast`: what cannot be in time is refused before any work is done for it.

Every estimate here is of the least that something can take: what is possible must not be refused. Time of an image
grows with the square of its patches, so seconds are counted and not tokens.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol

from foveal.engine.demand import Demand
from foveal.engine.estimates import Estimates
from foveal.engine.items import Entry
from foveal.engine.sent import SentPack
from foveal.errors import DeadlineExceeded, Overloaded, TooLarge
from foveal.metrics import Metrics

MAX_RETRY_AFTER_SECONDS = 60.0


class Estimating(Protocol):
    """A worker, and what it knows of times to come."""

    @property
    def is_up(self) -> bool:
        """True if it takes packs."""

    @property
    def estimates(self) -> Estimates:
        """Of single images and of packs."""

    @property
    def in_hand(self) -> Sequence[SentPack]:
        """Packs that it has not answered."""


class _Waiting(NamedTuple):
    number: int
    seconds: float


class Forecast:
    """Counts the images of all callers from admission until they are encoded."""

    def __init__(self, workers: Sequence[Estimating], request_seconds: float, metrics: Metrics) -> None:
        self._workers, self._request_seconds, self._metrics = workers, request_seconds, metrics
        self._waiting: dict[str, dict[int, _Waiting]] = {}
        """Of each caller, by priority."""
        self._total = 0.0

    @property
    def seconds_left(self) -> float:
        """The least that all that is counted can take."""
        return self._total / max(1, sum(worker.is_up for worker in self._workers))

    @contextlib.contextmanager
    def expect(self, num_tokens: int, num_patches: int, demand: Demand) -> Iterator[None]:
        """Count an image; raises TooLarge, DeadlineExceeded or Overloaded where it cannot be in time."""
        alone = self._of_quickest(lambda worker: worker.estimates.least_seconds(num_tokens, num_patches))
        if demand.last_deadline is not None:
            self._check(num_tokens, num_patches, alone, demand, demand.last_deadline - time.monotonic())
        caller, priority = demand.caller, demand.priority
        self._add(caller, priority, 1, alone)
        try:
            yield
        finally:
            self._add(caller, priority, -1, -alone)

    def _check(self, num_tokens: int, num_patches: int, alone: float, demand: Demand, left: float) -> None:
        if alone > self._request_seconds:
            raise TooLarge(
                f"encoding {num_tokens} tokens takes this server {alone:.0f} s or longer, more than its "
                f"{self._request_seconds:g} s for a request (--request-timeout-seconds); send max_pixels, or a lower "
                "--max-image-tokens with oversize=downscale"
            )
        if alone > left:
            raise DeadlineExceeded(
                f"encoding {num_tokens} tokens takes {alone:.1f} s or longer, and {max(left, 0.0):.1f} s are left "
                "until the deadline; allow more time, or send max_pixels"
            )
        lately = self._of_quickest(lambda worker: worker.estimates.seconds_lately(num_tokens, num_patches))
        own = max(alone, lately)
        if own + self._total <= left:
            return
        wait = self._least_wait(demand)
        if own + wait > left:
            self._metrics.admission_rejections.labels("deadline").inc()
            seconds = min(max(wait, 1.0), MAX_RETRY_AFTER_SECONDS)
            raise Overloaded(
                f"this image would wait {wait:.0f} s or longer, takes {own:.0f} s, and has {max(left, 0.0):.0f} s "
                f"until its deadline; try again in {seconds:.0f} s, allow more time, or send max_pixels",
                retry_after=seconds,
            )

    def _least_wait(self, demand: Demand) -> float:
        """Behind what the quickest worker has in hand, and what its own caller sent before, no less urgent."""
        up, now = [worker for worker in self._workers if worker.is_up], time.monotonic()
        if not up:
            return 0.0
        own = sum(w.seconds for p, w in self._waiting.get(demand.caller, {}).items() if p >= demand.priority)
        own -= sum(worker.estimates.least_of(_of(demand.caller, worker.in_hand)) for worker in up)
        return min(w.estimates.least_left(w.in_hand, now) for w in up) + max(own, 0.0) / len(up)

    def _of_quickest(self, seconds: Callable[[Estimating], float]) -> float:
        return min((seconds(worker) for worker in self._workers if worker.is_up), default=0.0)

    def _add(self, caller: str, priority: int, number: int, seconds: float) -> None:
        own = self._waiting.setdefault(caller, {})
        before = own.get(priority, _Waiting(0, 0.0))
        own[priority] = now = _Waiting(before.number + number, before.seconds + seconds)
        self._total += seconds
        if not now.number:
            del own[priority]
            if not own:
                del self._waiting[caller]
        if not self._waiting:
            self._total = 0.0  # sums of fractions do not come back to nothing by themselves


def _of(caller: str, packs: Sequence[SentPack]) -> Iterator[Entry]:
    return (entry for pack in packs for entry in pack.entries if entry.caller == caller)
