"""`Batcher`: the queue between prepared items and workers.

Entries wait here until a worker can take a pack; then packing chooses from all that wait. Whoever takes entries
settles them: each future is resolved exactly once, also when a worker dies or a pack fails.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence

from foveal.engine.course import Stage
from foveal.engine.demand import Demand
from foveal.engine.fairness import fair_order
from foveal.engine.items import Entry, Item, Timings
from foveal.engine.packing import Pack, least_finish, next_pack, predicted_milliseconds
from foveal.engine.sent import SentPack
from foveal.engine.worker import Worker
from foveal.errors import DeadlineExceeded, Draining, FovealError, Unavailable, error_of
from foveal.ipc.messages import PackDone, PackFailed
from foveal.metrics import Metrics

log = logging.getLogger(__name__)


class Batcher:
    """Collects the items of all callers and keeps the workers busy."""

    def __init__(self, max_wait_seconds: float, metrics: Metrics) -> None:
        self._max_wait = max_wait_seconds
        self._metrics = metrics
        self._queue: list[Entry] = []
        self._entries: set[Entry] = set()
        self._workers: Sequence[Worker] = ()
        self._turn = 0
        self._timer: asyncio.TimerHandle | None = None

    def serve(self, workers: Sequence[Worker]) -> None:
        """The workers that packs go to."""
        self._workers = workers

    async def encode(self, item: Item, demand: Demand) -> Timings:
        """Queue an item and wait until its embedding is written; raises Unavailable, DeadlineExceeded or `internal`."""
        entry = Entry(item, asyncio.get_running_loop().create_future(), time.monotonic(), demand)
        self._queue.append(entry)
        self._entries.add(entry)
        try:
            self.pump()
            return await entry.done
        except BaseException:  # its caller left, or it failed: what waits is fewer than before
            entry.done.cancel()  # without effect on a settled one
            self._drop_unwanted()
            self._show()
            raise
        finally:
            self._entries.discard(entry)

    def stop(self) -> None:
        """Tell everyone who still waits that the server has stopped."""
        for entry in self._entries:
            if entry.is_wanted:
                entry.done.set_exception(Draining("the server stopped before this image was encoded; try again"))
        self._queue = []

    def pump(self) -> None:
        """Give every worker that can take one its next pack. Decides without awaiting.

        Nothing waits between here and the copy to the device, so this is where who is gone or late is left out.
        """
        self._drop_late(time.monotonic())
        if not any(worker.is_hopeful for worker in self._workers):
            self._give_up()
        while self._queue and (worker := self._next_worker()) is not None:
            now = time.monotonic()
            if self._collects(worker, now):
                break
            pack = self._chosen(worker, now)
            entries = self._taken(pack, now)
            cost = predicted_milliseconds(entries, pack.budget, worker.ladder)
            worker.send(SentPack(entries, pack.num_tokens, pack.budget, pack.reason, now, cost))
            _tell(entries, "encode")
        self._show()

    def _chosen(self, worker: Worker, now: float) -> Pack:
        """The next pack. Should choosing fail, the oldest entry goes alone: one bug must not stop everyone."""
        try:
            pack = next_pack(self._queue, worker.ladder, now, fair_order(self._queue, now))
            assert pack is not None, "nothing was chosen of what waits: this is a bug"
            return pack
        except Exception:
            log.critical("no pack could be chosen: this is a bug", exc_info=True)
            tokens = self._queue[0].num_tokens
            budget = worker.ladder.smallest_for(tokens, 1)
            return Pack((0,), tokens, budget, "" if budget else "oversize")

    def _taken(self, pack: Pack, now: float) -> tuple[Entry, ...]:
        """Take a pack's entries from the queue; whoever was served has the next turn after all others."""
        entries = tuple(self._queue[i] for i in pack.members)
        taken = set(pack.members)
        self._queue = [entry for i, entry in enumerate(self._queue) if i not in taken]
        served = {entry.caller for entry in entries}
        for entry in self._queue:
            if entry.caller in served:
                entry.turn = now
        return entries

    def settle(self, worker: Worker, pack: SentPack, result: PackDone | PackFailed | None) -> None:
        """Resolve the futures of a pack: done, failed, or lost with its worker (None)."""
        match result:
            case PackDone():
                self._count(worker, pack, result)
                self._settle_done(pack, result)
            case PackFailed():
                log.error("pack failed", extra={"worker": worker.name, "reason": result.message, "fatal": result.fatal})
                self._run_apart(pack.entries)
            case None:
                self._run_elsewhere(pack.entries)

    def _settle_done(self, pack: SentPack, result: PackDone) -> None:
        failures = {i: error_of(code, why) for i, code, why in result.failures}
        for i, entry in enumerate(pack.entries):
            if not entry.is_wanted:
                continue
            if i in failures:
                level = logging.ERROR if failures[i].status >= 500 else logging.INFO
                log.log(level, "item failed", extra={"code": failures[i].code, "reason": failures[i].message})
                entry.done.set_exception(failures[i])
                continue
            timings = Timings(
                queue=pack.sent - entry.arrival,
                copy_in=result.copy_in_seconds,
                encode=result.encode_seconds,
                copy_out=result.copy_out_seconds,
            )
            course = entry.demand.course
            course.mode, course.budget = result.mode, pack.budget.tokens if pack.budget else 0
            course.stages.append(Stage("queue", entry.arrival, pack.sent))
            course.passed(copy_in=timings.copy_in, encode=timings.encode, copy_out=timings.copy_out)
            entry.done.set_result(timings)

    def _run_apart(self, entries: Sequence[Entry]) -> None:
        """Halve the company of a failed pack until the guilty item stands alone and fails alone."""
        if len(entries) == 1:
            if entries[0].is_wanted:
                entries[0].done.set_exception(FovealError("encoding this image failed on the worker; see its log"))
            return
        for entry in entries:
            entry.max_company = len(entries) // 2
        self._queue[:0] = entries
        _tell(entries, "queue")

    def _run_elsewhere(self, entries: Sequence[Entry]) -> None:
        """Queue a lost worker's entries again, once."""
        for entry in entries:
            entry.lost_with += 1
            entry.max_company = 1  # whoever ended the worker must not take others with it again
            if entry.lost_with > 1 and entry.is_wanted:
                entry.done.set_exception(Unavailable("the workers that encoded this image were lost; try again"))
        self._queue[:0] = entries
        _tell(entries, "queue")

    def _give_up(self) -> None:
        """Tell everyone who waits that no worker is expected back."""
        for entry in self._queue:
            entry.done.set_exception(Unavailable("no worker is left to encode this image; try again later"))
        self._queue = []

    def _next_worker(self) -> Worker | None:
        """The worker that can take a pack and would end it first; ties rotate."""
        able = [worker for worker in self._workers if worker.can_take]
        if not able:
            return None
        self._turn += 1
        waiting = sum(entry.num_tokens for entry in self._queue)
        costs = [worker.ladder.cover(min(waiting, worker.ladder.max_tokens)) for worker in able]
        return able[least_finish([worker.outstanding_milliseconds for worker in able], costs, self._turn)]

    def _collects(self, worker: Worker, now: float) -> bool:
        """True while --max-wait-ms lets more arrive; wakes up when it is over."""
        oldest = min(entry.arrival for entry in self._queue)
        tokens = sum(entry.num_tokens for entry in self._queue)
        left = oldest + self._max_wait - now
        if self._max_wait <= 0 or left <= 0 or tokens >= worker.ladder.max_tokens:
            return False
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(left, self.pump)
        return True

    def _count(self, worker: Worker, pack: SentPack, result: PackDone) -> None:
        m = self._metrics
        mode = "graph" if result.mode == "graph" else "eager"
        reason = "cpu" if result.mode == "static" else result.reason or pack.reason
        m.packs.labels(worker.name, mode, reason).inc()
        m.pack_items.observe(len(pack.entries))
        m.pack_tokens.observe(pack.num_tokens)
        m.tokens.inc(pack.num_tokens)
        m.patches.inc(sum(entry.item.num_patches for entry in pack.entries))
        if pack.budget is not None:
            m.padding_tokens.inc(pack.budget.tokens - pack.num_tokens)
            m.pack_fill_ratio.observe(pack.num_tokens / pack.budget.tokens)
            if result.mode == "graph":
                m.graph_replays.labels(worker.name, str(pack.budget.tokens)).inc()

    def _drop_unwanted(self) -> None:
        self._queue = [entry for entry in self._queue if entry.is_wanted]

    def _drop_late(self, now: float) -> None:
        """Leave out who is gone, and who could not be answered in time where the loop was too busy to tell them."""
        for entry in self._queue:
            if entry.is_wanted and entry.demand.is_late(now):
                entry.done.set_exception(DeadlineExceeded("the deadline passed while this image waited for a worker"))
        self._drop_unwanted()

    def _show(self) -> None:
        self._metrics.queue_items.set(len(self._queue))
        self._metrics.queue_tokens.set(sum(entry.num_tokens for entry in self._queue))


def _tell(entries: Sequence[Entry], stage: str) -> None:
    """Note what these entries are in now."""
    for entry in entries:
        entry.demand.course.under_way = stage
