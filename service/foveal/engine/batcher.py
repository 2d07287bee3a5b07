"""`Batcher`: the queue between prepared items and workers.

Entries wait until a worker can take a pack (`waiting_queue`); then packing chooses from those whose turn is near.
Whoever takes entries settles them: each future is resolved exactly once, also when a worker dies or a pack fails.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence

from foveal.engine.demand import Demand
from foveal.engine.filling import Pack
from foveal.engine.items import Entry, Item
from foveal.engine.packing import LONG_MILLISECONDS, least_finish, lone_pack, next_pack, predicted_milliseconds
from foveal.engine.sent import SentPack
from foveal.engine.sorted_items import some
from foveal.engine.waiting_queue import WaitingQueue
from foveal.engine.worker import Worker
from foveal.errors import DeadlineExceeded, Draining, FovealError, Unavailable, error_of
from foveal.ipc.messages import PackDone, PackFailed
from foveal.metrics import Metrics

log = logging.getLogger(__name__)

LEAST_WAIT_SECONDS = 0.001
"""A timer is not asked for less: it could come a rounding too early, again and again."""


class Batcher:
    """Collects the items of all callers and keeps the workers busy."""

    def __init__(self, max_wait_seconds: float, metrics: Metrics, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_wait, self._metrics, self._clock = max_wait_seconds, metrics, clock
        self._queue = WaitingQueue()
        self._entries: set[Entry] = set()
        self._workers: Sequence[Worker] = ()
        self._turn = 0
        self._wakes: asyncio.TimerHandle | None = None
        self._ends: dict[str, float] = {}
        """When each worker is expected to end what it was given."""
        # asked when somebody looks: these change with each arrival
        metrics.queue_items.set_function(lambda: len(self._queue))
        metrics.queue_tokens.set_function(lambda: self._queue.num_tokens)

    def serve(self, workers: Sequence[Worker]) -> None:
        """The workers that packs go to."""
        self._workers = workers

    async def encode(self, item: Item, demand: Demand) -> None:
        """Queue an item and wait until its embedding is written; raises Unavailable, DeadlineExceeded or `internal`."""
        entry = Entry(item, asyncio.get_running_loop().create_future(), self._clock(), demand)
        self._entries.add(entry)
        try:
            if not self._send_at_once(entry):
                self._queue.put(entry)
                self.pump()
            await entry.done
        finally:  # its caller may have left: then nothing of it waits any more
            entry.done.cancel()  # without effect on a settled one
            self._queue.discard(entry)
            self._entries.discard(entry)

    def stop(self) -> None:
        """Tell everyone who still waits that the server has stopped."""
        self._queue.pop_all()
        _fail(self._entries, Draining, "the server stopped before this image was encoded; try again")

    def pump(self) -> None:
        """Give every worker that can take one its next pack. Decides without awaiting.

        Nothing waits between here and the copy to the device, so this is where who is gone or late is left out: late
        entries that the loop was too busy to tell, too.
        """
        late = self._queue.pop_late(self._clock())
        _fail(late, DeadlineExceeded, "the deadline passed while this image waited for a worker")
        if not any(worker.is_hopeful for worker in self._workers):
            gone = self._queue.pop_all()
            _fail(gone, Unavailable, "no worker is left to encode this image; try again later")
        while self._queue and (worker := self._next_worker(self._queue.num_tokens)) is not None:
            now = self._clock()
            if self._collects(worker, now):
                break
            if (chosen := self._chosen(worker, now)) is not None:
                self._queue.take(chosen[1], now)
                self._send(worker, *chosen, now)

    def _send_at_once(self, entry: Entry) -> bool:
        """True if nothing else waits and a worker can take this one: then nobody's turn need be looked for."""
        now = self._clock()
        if self._queue or self._max_wait > 0 or entry.demand.is_late(now):
            return False
        worker = self._next_worker(entry.num_tokens)
        if worker is not None:
            self._send(worker, lone_pack(entry.num_tokens, worker.ladder), [entry], now)
        return worker is not None

    def _chosen(self, worker: Worker, now: float) -> tuple[Pack, list[Entry]] | None:
        """The next pack and its entries; None if everyone has just left.

        Should choosing fail, the oldest entry goes alone: one bug must not stop everyone.
        """
        try:
            candidates = self._queue.candidates(now)
            pack = next_pack(candidates, worker.ladder, now, range(len(candidates)))
            return None if pack is None else (pack, [candidates[i] for i in pack.members])
        except Exception:
            log.critical("no pack could be chosen: this is a bug", exc_info=True)
            oldest = some(self._queue.oldest)
            budget = worker.ladder.smallest_for(oldest.num_tokens, 1)
            return Pack((0,), oldest.num_tokens, budget, "" if budget else "oversize"), [oldest]

    def _send(self, worker: Worker, pack: Pack, entries: list[Entry], now: float) -> None:
        cost = predicted_milliseconds(entries, pack.budget, worker.ladder)
        begins = self._ends.get(worker.name, now) if worker.outstanding_milliseconds else now
        self._ends[worker.name] = max(begins, now) + cost / 1000
        worker.send(SentPack(tuple(entries), pack.num_tokens, pack.budget, pack.reason, now, cost))
        _tell(entries, "encode")

    def settle(self, worker: Worker, pack: SentPack, result: PackDone | PackFailed | None) -> None:
        """Resolve the futures of a pack: done, failed, or lost with its worker (None)."""
        left = max(worker.outstanding_milliseconds - pack.milliseconds, 0.0)
        self._ends[worker.name] = self._clock() + left / 1000  # what was predicted wrongly does not add up
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
        seconds = result.copy_in_seconds, result.encode_seconds, result.copy_out_seconds
        for i, entry in enumerate(pack.entries):
            if not entry.is_wanted:
                continue
            if i in failures:
                level = logging.ERROR if failures[i].status >= 500 else logging.INFO
                log.log(level, "item failed", extra={"code": failures[i].code, "reason": failures[i].message})
                entry.done.set_exception(failures[i])
                continue
            stages = entry.demand.stages
            stages.mode, stages.budget = result.mode, pack.budget.tokens if pack.budget else 0
            stages.record_pack(entry.arrival, pack.sent, *seconds)
            entry.done.set_result(None)

    def _run_apart(self, entries: Sequence[Entry]) -> None:
        """Halve the company of a failed pack until the guilty item stands alone and fails alone."""
        if len(entries) == 1:
            if entries[0].is_wanted:
                entries[0].done.set_exception(FovealError("encoding this image failed on the worker; see its log"))
            return
        for entry in entries:
            entry.max_company = len(entries) // 2
        self._put_back(entries)

    def _run_elsewhere(self, entries: Sequence[Entry]) -> None:
        """Queue a lost worker's entries again, once."""
        for entry in entries:
            entry.lost_with += 1
            entry.max_company = 1  # whoever ended the worker must not take others with it again
        lost_twice = [entry for entry in entries if entry.lost_with > 1]
        _fail(lost_twice, Unavailable, "the workers that encoded this image were lost; try again")
        self._put_back(entries)

    def _put_back(self, entries: Sequence[Entry]) -> None:
        wanted = [entry for entry in entries if entry.is_wanted]
        self._queue.put_back(wanted)
        _tell(wanted, "queue")

    def _next_worker(self, waiting: int) -> Worker | None:
        """The worker that should take a pack of so many waiting tokens and would end it first; ties rotate."""
        now = self._clock()
        able = [worker for worker in self._workers if worker.can_take and not self._is_early(worker, now)]
        if not able:
            return None
        self._turn += 1
        costs = [worker.ladder.cover(min(waiting, worker.ladder.max_tokens)) for worker in able]
        return able[least_finish([worker.outstanding_milliseconds for worker in able], costs, self._turn)]

    def _is_early(self, worker: Worker, now: float) -> bool:
        """True while a worker that could take one more pack is long busy without it; wakes up when it is not.

        What is given to it now goes before all who come until then, however small and urgent.
        """
        if not (worker.outstanding_milliseconds and worker.ladder.is_measured):
            return False
        left = self._ends.get(worker.name, now) - now - LONG_MILLISECONDS / 1000
        if left > 0:
            self._wake_in(left)
        return left > 0

    def _collects(self, worker: Worker, now: float) -> bool:
        """True while --max-wait-ms lets more arrive; wakes up when it is over."""
        oldest = self._queue.oldest
        if self._max_wait <= 0 or oldest is None or self._queue.num_tokens >= worker.ladder.max_tokens:
            return False
        left = oldest.arrival + self._max_wait - now
        if left > 0:
            self._wake_in(left)
        return left > 0

    def _wake_in(self, seconds: float) -> None:
        """Pump then, unless that is done earlier anyway."""
        loop, seconds = asyncio.get_running_loop(), max(seconds, LEAST_WAIT_SECONDS)
        if self._wakes is None or self._wakes.when() > loop.time() + seconds:
            if self._wakes is not None:
                self._wakes.cancel()
            self._wakes = loop.call_later(seconds, self._wake)

    def _wake(self) -> None:
        self._wakes = None
        self.pump()

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


def _fail(entries: Iterable[Entry], kind: type[FovealError], message: str) -> None:
    """Tell those who still wait for these entries, each by an error of its own."""
    for entry in entries:
        if entry.is_wanted:
            entry.done.set_exception(kind(message))


def _tell(entries: Sequence[Entry], stage: str) -> None:
    """Note what these entries are in now."""
    for entry in entries:
        entry.demand.stages.current = stage
