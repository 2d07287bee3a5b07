"""Embeddings that foveal has promised to keep until they are fetched, or until their time is over.

An LLM server that was told of an embedding relies on it: one that is gone has been seen to end the whole server. So a
promise is kept or not given: what does not fit is refused, and nothing leaves early for something newer. Bounded in
bytes. What is kept is the very block that the worker wrote; keeping it copies nothing.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from foveal.engine.items import Encoded
from foveal.errors import Overloaded, TooLarge
from foveal.metrics import Metrics

MAX_RETRY_AFTER_SECONDS = 60.0


@dataclass(frozen=True, eq=False)
class Promise:
    """One embedding under one name, until a moment of the clock."""

    name: str
    encoded: Encoded
    until: float


class Promises:
    """All live equally long, so the oldest is always the next to expire."""

    def __init__(
        self, max_bytes: int, seconds: float, metrics: Metrics, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.max_bytes, self.seconds = max_bytes, seconds
        self._metrics, self._clock = metrics, clock
        self._promises: OrderedDict[str, Promise] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._promises)

    @property
    def num_bytes(self) -> int:
        """Of all that is kept."""
        return self._bytes

    def promise(self, encoded: Sequence[Encoded], names: Sequence[str] | None = None) -> None:
        """Keep all of these, or raise Overloaded or TooLarge and keep none. A name that is kept already is renewed.

        Each is kept under its content key, or under its name in `names`.
        """
        self.refuse_unless_fits(encoded, names)
        until = self._clock() + self.seconds
        for name, one in _named(encoded, names).items():
            self._drop(name)
            self._promises[name] = Promise(name, one, until)
            self._bytes += one.num_bytes
            self._metrics.handover.labels("promised").inc()
        self._show()

    def refuse_unless_fits(self, encoded: Sequence[Encoded], names: Sequence[str] | None = None) -> None:
        """Raise, and count, what `promise` would raise now."""
        self.expire()
        wanted = _named(encoded, names)
        new = sum(one.num_bytes for one in wanted.values())
        renewed = sum(self._promises[name].encoded.num_bytes for name in wanted if name in self._promises)
        if new > self.max_bytes:
            self.count_refused(len(wanted))
            raise TooLarge(
                f"the embeddings of this request are {new} bytes, more than the {self.max_bytes} of --handover-bytes "
                "that are ever held; send fewer or smaller images"
            )
        if self._bytes - renewed + new > self.max_bytes:
            self.count_refused(len(wanted))
            raise Overloaded(
                f"the server holds as many embeddings as --handover-bytes {self.max_bytes} allows, and none is given "
                "up before it is fetched or its time is over; try again",
                retry_after=self._seconds_to_next(),
            )

    def get(self, name: str) -> Promise | None:
        """What is kept under a name."""
        self.expire()
        return self._promises.get(name)

    def fetched(self, promise: Promise) -> None:
        """A promise was kept: it ends, unless it was renewed since."""
        self._metrics.handover.labels("fetched").inc()
        if self._promises.get(promise.name) is promise:
            self._drop(promise.name)
            self._show()

    def expire(self) -> bool:
        """Drop what has had its time; False if there was nothing."""
        now, count = self._clock(), 0
        while self._promises and (name := next(iter(self._promises))) and self._promises[name].until <= now:
            self._drop(name)
            count += 1
        if count:
            self._metrics.handover.labels("expired").inc(count)
            self._show()
        return count > 0

    def count_refused(self, count: int) -> None:
        """A request for so many embeddings was refused: here, or by shared storage."""
        self._metrics.handover.labels("refused").inc(count)
        self._metrics.admission_rejections.labels("handover").inc()

    def shown(self) -> dict[str, float]:
        """For /info."""
        return {
            "max_bytes": self.max_bytes,
            "bytes": self._bytes,
            "entries": len(self._promises),
            "seconds": self.seconds,
        }

    def _drop(self, name: str) -> None:
        if (promise := self._promises.pop(name, None)) is not None:
            self._bytes -= promise.encoded.num_bytes

    def _seconds_to_next(self) -> float:
        """Until the oldest expires, within what makes sense to wait."""
        oldest = next(iter(self._promises.values()), None)
        left = oldest.until - self._clock() if oldest else 1.0
        return min(max(left, 1.0), MAX_RETRY_AFTER_SECONDS)

    def _show(self) -> None:
        self._metrics.handover_bytes.set(self._bytes)
        self._metrics.handover_entries.set(len(self._promises))


def _named(encoded: Sequence[Encoded], names: Sequence[str] | None) -> dict[str, Encoded]:
    """Each embedding once, by the name that it is kept under."""
    return dict(zip(names or [one.key for one in encoded], encoded, strict=True))
