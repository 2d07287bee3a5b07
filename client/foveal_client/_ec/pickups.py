"""Which embeddings vLLM's waiting requests need, and which of them are here. Decides without waiting; no I/O, no vLLM.

A request holds all that it needs or nothing, so two requests never wait for each other's memory. Held embeddings stay
until the request has used them, whatever vLLM's own cache does meanwhile; then they are kept while there is room.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field

from foveal_client._ec.fetch import Need, PickupFailed
from foveal_client._ec.memory import MemoryFile

logger = logging.getLogger(__name__)
Start = Callable[[Need], "Future[MemoryFile]"]
"""Begin to fetch; the future is settled on another thread, and cancelling it stops the fetch."""


@dataclass(eq=False)
class _Pickup:
    """One embedding, on its way or here."""

    need: Need
    future: Future[MemoryFile]
    requests: set[str] = field(default_factory=set)
    """Those that hold it."""
    num_loading: int = 0
    """Times that it was handed to the workers, which have not said yet that they have it."""

    @property
    def is_here(self) -> bool:
        return self.future.done() and not self.future.cancelled() and self.future.exception() is None

    @property
    def failure(self) -> BaseException | None:
        return self.future.exception() if self.future.done() and not self.future.cancelled() else None

    @property
    def num_bytes(self) -> int:
        """What it takes, or may take until it is here."""
        return self.future.result().num_bytes if self.is_here else self.need.max_bytes

    @property
    def is_free(self) -> bool:
        return not self.requests and not self.num_loading


class Pickups:
    """All pick-ups of one engine. To be called from one thread."""

    def __init__(self, start: Start, max_bytes: int) -> None:
        self._start = start
        self._max_bytes = max_bytes
        self._pickups: OrderedDict[Need, _Pickup] = OrderedDict()
        """Least recently wanted first."""
        self._failed: dict[str, str] = {}
        """Requests that cannot be served, and why; until they have ended."""
        self._untold: set[str] = set()
        self._loads: list[_Pickup] = []
        self._loading: dict[str, list[_Pickup]] = {}

    @property
    def num_bytes(self) -> int:
        """Of all embeddings here and on their way."""
        return sum(pickup.num_bytes for pickup in self._pickups.values())

    def want(self, request_id: str, needs: Sequence[Need]) -> bool:
        """True when all of these are here and held for the request. Else begins to fetch them, if there is room."""
        if request_id in self._failed:
            return False
        if not all(self._holds(request_id, need) for need in needs) and not self._take(request_id, set(needs)):
            return False
        for need in needs:
            if (failure := self._pickups[need].failure) is not None:
                self.fail(request_id, f"{need.key[:12]}: {failure}")
                return False
        return all(self._pickups[need].is_here for need in needs)

    def fail(self, request_id: str, why: str) -> None:
        """This request cannot be served; others are not touched."""
        if request_id not in self._failed:
            logger.warning("request %s fails: %s", request_id, why)
            self._failed[request_id] = why
            self._untold.add(request_id)

    def take_failed(self) -> set[str]:
        """Requests that have failed since the last call."""
        for pickup in self._pickups.values():
            if pickup.requests and (failure := pickup.failure) is not None:
                for request_id in pickup.requests:
                    self.fail(request_id, f"{pickup.need.key[:12]}: {failure}")
        found, self._untold = self._untold, set()
        return found

    def has(self, need: Need) -> bool:
        """True when this one is here and held by some request."""
        return (pickup := self._pickups.get(need)) is not None and bool(pickup.requests) and pickup.is_here

    def load(self, request_id: str, need: Need) -> None:
        """Hand an embedding that the request holds to the workers, in the next step."""
        pickup = self._pickups[need]
        assert request_id in pickup.requests, f"{request_id} loads what it does not hold: this is a bug"
        pickup.num_loading += 1
        self._loads.append(pickup)

    def take_loads(self) -> list[tuple[str, str]]:
        """Key and path of what is to be loaded in this step."""
        loads, self._loads = self._loads, []
        for pickup in loads:
            self._loading.setdefault(pickup.need.key, []).append(pickup)
        return [(pickup.need.key, pickup.future.result().path) for pickup in loads]

    def loaded(self, keys: Iterable[str]) -> None:
        """All workers have these."""
        for key in keys:
            for pickup in self._loading.pop(key, []):
                pickup.num_loading -= 1

    def release(self, request_id: str, need: Need) -> None:
        """The request has used this one."""
        if (pickup := self._pickups.get(need)) is not None:
            pickup.requests.discard(request_id)

    def finish(self, request_id: str) -> None:
        """The request has ended, in whatever way; what only it waited for is not fetched any more."""
        self._failed.pop(request_id, None)
        self._untold.discard(request_id)
        self._let_go(request_id)

    def close(self) -> None:
        """Stop all fetching and let go of everything."""
        for need in list(self._pickups):
            self._drop(need)

    def _holds(self, request_id: str, need: Need) -> bool:
        return need in self._pickups and request_id in self._pickups[need].requests

    def _take(self, request_id: str, needs: set[Need]) -> bool:
        """Hold all of them, or none until there is room."""
        total = sum(need.max_bytes for need in needs)
        if total > self._max_bytes:
            self.fail(request_id, f"its embeddings may take {total} bytes, over the max_bytes of {self._max_bytes}")
            return False
        for need in [need for need in needs if need in self._pickups and self._is_spoiled(need)]:
            self._drop(need)
        new = [need for need in needs if need not in self._pickups]
        if not self._make_room(sum(need.max_bytes for need in new), needs):
            self._let_go(request_id)
            return False
        for need in new:
            self._pickups[need] = _Pickup(need, self._start(need))
        for need in needs:
            self._pickups[need].requests.add(request_id)
            self._pickups.move_to_end(need)
        return True

    def _is_spoiled(self, need: Need) -> bool:
        """Nobody holds it and it will never be here: a new request tries again."""
        pickup = self._pickups[need]
        return pickup.is_free and (pickup.failure is not None or pickup.future.cancelled())

    def _make_room(self, num_bytes: int, wanted: set[Need]) -> bool:
        """Drop what nobody holds, oldest first, until so much more fits; False, and nothing dropped, if it cannot."""
        over = self.num_bytes + num_bytes - self._max_bytes
        victims = []
        for need, pickup in self._pickups.items():
            if over <= 0:
                break
            if pickup.is_free and need not in wanted:
                victims.append(need)
                over -= pickup.num_bytes
        if over > 0:
            return False
        for need in victims:
            self._drop(need)
        return True

    def _let_go(self, request_id: str) -> None:
        for need, pickup in list(self._pickups.items()):
            if request_id in pickup.requests:
                pickup.requests.discard(request_id)
                if pickup.is_free and not pickup.is_here:
                    self._drop(need)

    def _drop(self, need: Need) -> None:
        future = self._pickups.pop(need).future
        future.cancel()
        future.add_done_callback(_close)


def _close(future: Future[MemoryFile]) -> None:
    """Of a fetch whose result nobody wants any more."""
    try:
        future.result().close()
    except (CancelledError, PickupFailed):
        return
