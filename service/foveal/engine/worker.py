"""`Worker`: the parent's handle to one worker process, and the packs that it has in hand."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from foveal.engine.child import Child, Program
from foveal.engine.items import Entry
from foveal.engine.ladder import Attention, Ladder
from foveal.ipc.messages import (
    Configure,
    FromWorker,
    LadderChanged,
    PackDone,
    PackFailed,
    PackItem,
    Progress,
    RunPack,
    StartFailed,
    ToWorker,
    WorkerReady,
)
from foveal.metrics import Metrics
from foveal.types import TokenBudget

log = logging.getLogger(__name__)

MAX_FAILED_STARTS = 3
"""After so many in a row, callers are not told to wait for a worker that once was ready. It is tried for ever."""
LATE_FACTOR = 20
"""A pack is late after the timeout and so many times its predicted time."""


@dataclass(frozen=True)
class Patience:
    """Seconds after which a worker is taken to hang."""

    start: float
    """Without a word while it starts."""
    pack: float
    """With a pack, beyond its predicted time."""


@dataclass
class SentPack:
    """A pack that a worker has in hand."""

    entries: tuple[Entry, ...]
    num_tokens: int
    budget: TokenBudget | None
    reason: str
    sent: float
    milliseconds: float


class Worker:
    """One GPU's (or CPU's) process. Tells `settle` what became of each pack, `changed` when it may take more."""

    def __init__(
        self,
        name: str,
        program: Program,
        configure: Configure,
        merge_area: int,
        depth: int,
        metrics: Metrics,
        settle: Callable[[Worker, SentPack, PackDone | PackFailed | None], None],
        changed: Callable[[], None],
    ) -> None:
        self.name = name
        self.child: Child[ToWorker, FromWorker] = Child(name, program, cast(type[FromWorker], FromWorker), self)
        self.ladder = Ladder(())
        self.ready: WorkerReady | None = None
        self.was_ready = False
        self.stage = "starting"
        self.failure: str | None = None
        self.failed_starts = 0
        self.ended = ""
        """How its last failed start ended, and in which stage."""
        self._configure, self._merge_area, self._depth, self._metrics = configure, merge_area, depth, metrics
        self._settle, self._changed = settle, changed
        self._packs: dict[int, SentPack] = {}
        self._last_id = 0
        self._heard = 0.0
        self._is_ending = False
        metrics.worker_up.labels(name).set(0)
        metrics.graph_memory_bytes.labels(name).set(0)
        metrics.gpu_memory_bytes.labels(name, "weights").set(0)
        metrics.worker_restarts.labels(name, "worker")
        metrics.expect_packs(name, configure.device)

    @property
    def can_take(self) -> bool:
        """True if it is ready and has fewer packs in hand than it may have."""
        return self.ready is not None and not self._is_ending and len(self._packs) < self._depth

    @property
    def is_hopeful(self) -> bool:
        """True if it works or, having worked, may be expected back."""
        return self.ready is not None or (self.was_ready and self.failed_starts < MAX_FAILED_STARTS)

    @property
    def outstanding_milliseconds(self) -> float:
        """Predicted time of what it has in hand."""
        return sum(pack.milliseconds for pack in self._packs.values())

    def send(self, pack: SentPack) -> None:
        """Give it a pack."""
        self._last_id += 1
        self._packs[self._last_id] = pack
        items = tuple(
            PackItem(e.item.rows.span, e.item.grid.h, e.item.grid.w, e.item.embedding.span, e.item.output)
            for e in pack.entries
        )
        self.child.send(RunPack(self._last_id, items, pack.budget.tokens if pack.budget else 0, pack.reason))

    def shown(self) -> dict[str, object]:
        """For /info."""
        ready = self.ready
        facts: dict[str, object] = {"name": self.name, "ready": ready is not None, "stage": self.stage}
        facts |= {"restarts": self.child.restarts, "pid": self.child.pid, "failure": self.failure}
        if ready is not None:
            facts |= {"device": ready.device, "dtype": ready.dtype, "attention": ready.attention}
            facts |= {"weights_bytes": ready.weights_bytes, "buffers_bytes": ready.buffers_bytes}
            facts |= {"load_seconds": round(ready.load_seconds, 3), "torch": ready.torch_version}
        return facts

    # ------------------------------------------------------------ what its process says

    def started(self) -> None:
        """Say what to load."""
        self.stage = "importing torch"
        self._heard, self._is_ending = time.monotonic(), False
        self.child.send(self._configure)

    def received(self, message: FromWorker) -> None:
        """Progress, readiness, finished packs."""
        self._heard = time.monotonic()
        match message:
            case Progress():
                self.stage = message.stage
            case StartFailed():
                self.failure = message.message
                self.failed_starts = MAX_FAILED_STARTS
                log.error("worker cannot start", extra={"worker": self.name, "reason": message.message})
            case WorkerReady():
                self._is_ready(message)
            case LadderChanged():
                self._ladder_changed(message)
            case PackDone() | PackFailed():
                if message.device_bytes:
                    self._metrics.gpu_memory_bytes.labels(self.name, "used").set(message.device_bytes)
                self._settle(self, self._packs[message.id], message)
                del self._packs[message.id]  # only now: should settling fail, `lost` settles what is left
        self._changed()

    def lost(self, exit_code: int) -> None:
        """Hand every pack back; they run elsewhere."""
        if self.ready is None:
            self.failed_starts += 1
            self.ended = f"{self.name}: {_ended(exit_code)}, {self.stage}"
        self.ready, self.stage = None, f"restarting after exit code {exit_code}"
        self._metrics.worker_up.labels(self.name).set(0)
        self._metrics.worker_restarts.labels(self.name, "worker").inc()
        packs, self._packs = list(self._packs.values()), {}
        for pack in packs:
            self._settle(self, pack, None)
        self._changed()

    def end_if_late(self, patience: Patience) -> None:
        """End the process when it says nothing in its start, or a pack takes far longer than predicted.

        What it does then goes to the log; its items run elsewhere.
        """
        if self._is_ending or self.child.pid is None:
            return
        now, oldest = time.monotonic(), min(self._packs.values(), key=lambda pack: pack.sent, default=None)
        if self.ready is None:
            spent, allowed = now - self._heard, patience.start
        elif oldest is not None:
            # it answers in order: a pack behind others has its time from the last answer on
            spent = now - max(oldest.sent, self._heard)
            allowed = patience.pack + LATE_FACTOR * oldest.milliseconds / 1000
        else:
            return
        if spent > allowed:
            log.error("worker hangs", extra={"worker": self.name, "seconds": round(spent, 1), "stage": self.stage})
            self._is_ending = True
            self.child.end_hanging()

    def _ladder_changed(self, message: LadderChanged) -> None:
        attention = Attention(message.ms_per_patch2, message.typical_patches, self._merge_area)
        self.ladder = Ladder(message.budgets, attention)
        self._metrics.graph_memory_bytes.labels(self.name).set(message.graph_bytes)
        captured = self._expect_replays(message.budgets)
        self.stage = _ready_stage(message.is_final, captured)

    def _expect_replays(self, budgets: tuple[TokenBudget, ...]) -> int:
        """Series of the graphs there are; their number."""
        captured = [budget.tokens for budget in budgets if budget.is_captured]
        for tokens in captured:
            self._metrics.graph_replays.labels(self.name, str(tokens))
        return len(captured)

    def _is_ready(self, message: WorkerReady) -> None:
        self.ready, self.was_ready, self.stage = message, True, _ready_stage(message.is_final, 0)
        self.failure, self.failed_starts = None, 0
        self.ladder = Ladder(message.budgets)
        self._expect_replays(message.budgets)
        self._metrics.worker_up.labels(self.name).set(1)
        self._metrics.graph_memory_bytes.labels(self.name).set(sum(b.bytes for b in message.budgets))
        self._metrics.gpu_memory_bytes.labels(self.name, "weights").set(message.weights_bytes)
        log.info(
            "worker ready",
            extra={
                "worker": self.name,
                "device": message.device,
                "dtype": message.dtype,
                "attention": message.attention,
                "budgets": len(message.budgets),
                "load_seconds": round(message.load_seconds, 2),
            },
        )


def _ended(exit_code: int) -> str:
    """An exit code in words."""
    names = {-number.value: number.name for number in signal.Signals}
    return f"ended by {names[exit_code]}" if exit_code in names else f"exit code {exit_code}"


def _ready_stage(is_final: bool, captured: int) -> str:
    return "ready" if is_final else f"ready, {captured} graphs captured so far"
