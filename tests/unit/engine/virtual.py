"""A loop whose clock runs only while it would sleep, and workers that take as long as their ladder says."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from foveal.engine.batcher import Batcher
from foveal.engine.ladder import Attention, Ladder
from foveal.engine.worker import SentPack
from foveal.ipc.messages import PackDone
from foveal.types import TokenBudget

Result = TypeVar("Result")

CPU = Ladder(
    tuple(TokenBudget(t, 64, 1.3 + 0.0776 * t) for t in (32, 64, 96, 128, 256, 512, 1024, 1664, 2048, 4096, 5120)),
    Attention(1.05e-5, typical_patches=0),
)
"""Of a tiny tower on one core: 4 ms for 32 tokens, 0.56 s for an image of 1,600, most of that in attention."""


class _Selector(selectors.DefaultSelector):
    """Instead of sleeping, moves the clock."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found = super().select(0)
        if not found and timeout is not None:
            self.now += max(timeout, 0.0)
        return found


class VirtualLoop(asyncio.SelectorEventLoop):
    """Runs as fast as it can, and tells the time that would have passed."""

    def __init__(self) -> None:
        self._clock = _Selector()
        super().__init__(self._clock)

    def time(self) -> float:
        """Seconds since the loop was made."""
        return self._clock.now


def run_virtually(work: Coroutine[Any, Any, Result]) -> Result:
    """The result of `work`, by a clock of its own."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)


class SimulatedWorker:
    """Runs one pack after the other, each for its predicted time or that times `pace`."""

    is_hopeful = True

    def __init__(
        self, batcher: Callable[[], Batcher], early: list[float], ladder: Ladder, depth: int, pace: float
    ) -> None:
        self.name, self.ladder, self.depth = "simulated", ladder, depth
        self._early, self._ends, self._pace = early, 0.0, pace
        self._batcher = batcher
        self._packs: list[SentPack] = []

    @property
    def can_take(self) -> bool:
        return len(self._packs) < self.depth

    @property
    def outstanding_milliseconds(self) -> float:
        return sum(pack.milliseconds for pack in self._packs)

    def send(self, pack: SentPack) -> None:
        self._packs.append(pack)
        if len(self._packs) == 1:
            self._run()
        else:
            self._early.append(self._ends - asyncio.get_running_loop().time())

    def _run(self) -> None:
        loop = asyncio.get_running_loop()
        self._ends = loop.time() + self._pace * self._packs[0].milliseconds / 1000
        loop.call_at(self._ends, self._end)

    def _end(self) -> None:
        pack = self._packs[0]
        done = PackDone(1, "static", 0.0, pack.milliseconds / 1000, 0.0, ())
        self._batcher().settle(self, pack, done)  # type: ignore[arg-type]
        del self._packs[0]
        if self._packs:
            self._run()
        self._batcher().pump()
