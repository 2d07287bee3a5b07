"""`Worker`: the parent's handle to one worker process, and the packs that it has in hand."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import cast

from foveal.engine.child import Child, Program, in_words
from foveal.engine.estimates import Estimates
from foveal.engine.ladder import Attention, Ladder
from foveal.engine.lateness import Patience, Watch
from foveal.engine.sent import SentPack
from foveal.ipc.messages import (
    Configure,
    FromWorker,
    GiveUp,
    Heartbeat,
    LadderChanged,
    PackDone,
    PackFailed,
    PackGivenUp,
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
        self._is_up = self._is_ending = False
        self._is_on_cpu = configure.device == "cpu"
        self.watch = Watch(self.child.pulse, max(1, configure.threads) if self._is_on_cpu else 0)
        self.estimates = Estimates(self.watch.pace)
        metrics.worker_up.labels(name).set(0)
        metrics.graph_memory_bytes.labels(name).set(0)
        metrics.gpu_memory_bytes.labels(name, "weights").set(0)
        metrics.worker_restarts.labels(name, "worker")
        metrics.expect_packs(name, configure.device)

    @property
    def ladder(self) -> Ladder:
        """What it can run, and what that costs."""
        return self.estimates.ladder

    @property
    def is_up(self) -> bool:
        """True if it is ready, and gives signs of life."""
        return self.ready is not None and not self._is_ending and not self.child.pulse.is_suspect

    @property
    def shown_stage(self) -> str:
        """For /ready and /info."""
        return self.stage if self.is_up or self.ready is None else "gives no sign of life"

    @property
    def can_take(self) -> bool:
        """True if it is up and has fewer packs in hand than it may have."""
        return self.is_up and len(self._packs) < self._depth

    @property
    def is_hopeful(self) -> bool:
        """True if it works or, having worked, may be expected back."""
        return self.ready is not None or (self.was_ready and self.failed_starts < MAX_FAILED_STARTS)

    @property
    def in_hand(self) -> Sequence[SentPack]:
        """Packs in the order in which it answers them."""
        return tuple(self._packs.values())

    @property
    def outstanding_milliseconds(self) -> float:
        """Predicted time of what it has in hand."""
        return sum(pack.milliseconds for pack in self._packs.values())

    def send(self, pack: SentPack) -> None:
        """Give it a pack."""
        if not self._packs:
            self.watch.goes_on()
        self._last_id += 1
        self._packs[self._last_id] = pack
        items = tuple(
            PackItem(e.item.rows.span, e.item.grid.h, e.item.grid.w, e.item.embedding.span, e.item.output)
            for e in pack.entries
        )
        self.child.send(RunPack(self._last_id, items, pack.budget.tokens if pack.budget else 0, pack.reason))
        if self._is_on_cpu:  # a GPU's packs are short, and issued before they could be given up
            for entry in pack.entries:
                entry.done.add_done_callback(partial(self._give_up_unwanted, self._last_id))

    def shown(self) -> dict[str, object]:
        """For /info."""
        ready = self.ready
        facts: dict[str, object] = {"name": self.name, "ready": self.is_up, "stage": self.shown_stage}
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
        self.watch.goes_on()
        self._is_ending = False
        self.child.send(self._configure)

    def received(self, message: FromWorker) -> None:
        """Progress, readiness, finished packs."""
        self.watch.goes_on()
        match message:
            case Progress():
                self.stage = message.stage
                self.watch.is_capturing = self.ready is not None
            case StartFailed():
                self.failure = message.message
                self.failed_starts = MAX_FAILED_STARTS
                log.error("worker cannot start", extra={"worker": self.name, "reason": message.message})
            case WorkerReady():
                self._is_ready(message)
            case LadderChanged():
                self._ladder_changed(message)
            case PackDone() | PackFailed():
                self._pack_ended(message)
            case PackGivenUp():
                self._metrics.packs.labels(self.name, "given_up", "unwanted").inc()
                pack = self._packs.pop(message.id)
                self.estimates.gave_up(pack, time.monotonic() - pack.sent)
            case Heartbeat():
                pass  # is for the pulse
        self._changed()

    def lost(self, exit_code: int) -> None:
        """Hand every pack back; they run elsewhere."""
        if self.ready is None:
            self.failed_starts += 1
            self.ended = f"{self.name}: {in_words(exit_code)}, {self.stage}"
        self.ready, self.stage = None, f"restarting after exit code {exit_code}"
        self._show_up()
        self._metrics.worker_restarts.labels(self.name, "worker").inc()
        packs, self._packs = list(self._packs.values()), {}
        for pack in packs:
            self._settle(self, pack, None)
        self._changed()

    def end_if_late(self, patience: Patience) -> None:
        """End the process when it gives no sign of life, says nothing in its start, or does not finish a pack.

        What it does then goes to the log; its items run elsewhere.
        """
        trouble = self.watch.trouble(self.ready is None, next(iter(self._packs.values()), None), patience)
        if trouble and not self._is_ending and self.child.pid is not None:
            facts = {"worker": self.name, "reason": trouble, "stage": self.stage, "seconds": round(self.watch.spent, 1)}
            log.error("worker hangs", extra=facts)
            self._is_ending = True
            self.child.end_hanging()
        if self._show_up():
            self._changed()

    def _show_up(self) -> bool:
        """Show whether it is up; True if that is new."""
        was_up, self._is_up = self._is_up, self.is_up
        self._metrics.worker_up.labels(self.name).set(self._is_up)
        return was_up != self._is_up

    def _give_up_unwanted(self, pack_id: int, _: asyncio.Future[None]) -> None:
        """Tell it to leave a pack when the last who waited for one of its entries has gone."""
        pack = self._packs.get(pack_id)
        if pack is not None and not pack.is_wanted:
            self.child.send(GiveUp(pack_id))

    def _pack_ended(self, message: PackDone | PackFailed) -> None:
        pack = self._packs[message.id]
        if message.device_bytes:
            self._metrics.gpu_memory_bytes.labels(self.name, "used").set(message.device_bytes)
        if isinstance(message, PackDone):
            seconds = message.copy_in_seconds + message.encode_seconds + message.copy_out_seconds
            self.estimates.took(pack, seconds)
        self._settle(self, pack, message)
        del self._packs[message.id]  # only now: should settling fail, `lost` settles what is left

    def _ladder_changed(self, message: LadderChanged) -> None:
        attention = Attention(message.ms_per_patch2, message.typical_patches, self._merge_area)
        self.estimates.begin_anew(Ladder(message.budgets, attention), message.least)
        self.watch.is_capturing = False
        self._metrics.graph_memory_bytes.labels(self.name).set(message.graph_bytes)
        self.stage = _ready_stage(message.is_final, self._expect_replays(message.budgets))

    def _expect_replays(self, budgets: tuple[TokenBudget, ...]) -> int:
        """Series of the graphs there are; their number."""
        captured = [budget.tokens for budget in budgets if budget.is_captured]
        return len([self._metrics.graph_replays.labels(self.name, str(tokens)) for tokens in captured])

    def _is_ready(self, message: WorkerReady) -> None:
        self.ready, self.was_ready, self.stage = message, True, _ready_stage(message.is_final, 0)
        self.failure, self.failed_starts = None, 0
        self.estimates.begin_anew(Ladder(message.budgets), None)
        self.watch.is_capturing = False
        self._expect_replays(message.budgets)
        self._show_up()
        self._metrics.graph_memory_bytes.labels(self.name).set(sum(b.bytes for b in message.budgets))
        self._metrics.gpu_memory_bytes.labels(self.name, "weights").set(message.weights_bytes)
        log.info("worker ready", extra={"worker": self.name, "device": message.device})


def _ready_stage(is_final: bool, captured: int) -> str:
    return "ready" if is_final else f"ready, {captured} graphs captured so far"
