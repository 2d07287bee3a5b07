"""`PrepPool`: the processes that read, decode and resize pictures. One task at a time each, headers first."""

from __future__ import annotations

import asyncio
import logging
import signal
from typing import cast

from foveal.engine.child import Child, Program, run_all
from foveal.engine.decode_rate import DecodeRate
from foveal.engine.demand import Demand
from foveal.engine.prep_queue import PrepQueue
from foveal.engine.prep_task import PrepTask
from foveal.engine.pulse import Mark
from foveal.errors import Draining, TooLarge, Unavailable, Undecodable, error_of
from foveal.ipc.arena import Block
from foveal.ipc.messages import ChildReady, FromPrep, Heartbeat, Prepare, Prepared, Probe, Probed, Refused, ToPrep
from foveal.metrics import Metrics
from foveal.types import PixelPlan

log = logging.getLogger(__name__)

MAX_LEAD_PROBES = 64.0
"""How many headers more than its share a caller may have had read and have it remembered."""

START_SECONDS = 60.0
"""A process that is not ready by then hangs."""

SECOND_TRIES = 1
"""Of a picture whose process ended: something else may have ended it, as the kernel does where memory runs out."""


class PrepPool:
    """Gives tasks to idle processes; headers go before pictures, so that refusals do not wait for decoding."""

    def __init__(self, size: int, program: Program, max_pixels: int, timeout: float, metrics: Metrics) -> None:
        self._max_pixels, self._timeout = max_pixels, timeout
        self.queue: PrepQueue[PrepTask] = PrepQueue()
        self.decode_rate = DecodeRate()
        self._workers = [_PrepWorker(f"prep-{i}", program, self, metrics) for i in range(size)]
        self._last_id = 0
        metrics.prep_queue_items.set_function(lambda: len(self.queue))

    @property
    def num_ready(self) -> int:
        """Processes that take work."""
        return sum(worker.is_up for worker in self._workers)

    def shown(self) -> list[dict[str, object]]:
        """For /info."""
        return [
            {"name": w.child.name, "ready": w.is_up, "restarts": w.child.restarts, "pid": w.child.pid}
            for w in self._workers
        ]

    async def run(self) -> None:
        """Keep the processes running until `stop`."""
        await run_all([worker.child for worker in self._workers], self._end_late)

    def _end_late(self) -> None:
        for worker in self._workers:
            worker.end_if_late(self._timeout)

    async def stop(self) -> None:
        """Tell everyone who still waits, and end the processes."""
        waiting = [*self.queue.all(), *(worker.task for worker in self._workers if worker.task is not None)]
        for task in waiting:
            if not task.done.done():
                task.done.set_exception(Draining("the server stopped before this image was read; try again"))
        await asyncio.gather(*(worker.child.stop() for worker in self._workers))

    async def probe(self, image: Block, demand: Demand) -> Probed:
        """Format and upright size from the header; raises the refusal."""
        message = Probe(self._next_id(), image.span, self._max_pixels)
        return cast(Probed, await self._do(PrepTask(message, (image,), demand, self.decode_rate)))

    async def prepare(
        self,
        image: Block,
        rows: Block,
        plan: PixelPlan,
        background: tuple[int, int, int],
        demand: Demand,
        decode_work: int = 0,
    ) -> Prepared:
        """Write the patch rows of the picture into `rows`; raises the refusal, and DeadlineExceeded where it would come
        too late. `decode_work` is what its header told.
        """
        message = Prepare(self._next_id(), image.span, rows.span, plan, background, self._max_pixels)
        work = decode_work + plan.width * plan.height
        return cast(Prepared, await self._do(PrepTask(message, (image, rows), demand, self.decode_rate, work)))

    def do_again(self, task: PrepTask) -> None:
        """Queue a task once more whose process ended. It takes its caller's next turn: who sends what ends processes
        has no more of them than before.
        """
        self.queue.put_back(task)
        self._wake()

    async def _do(self, task: PrepTask) -> Probed | Prepared:
        idle = self._idle()
        if idle is not None and self.queue.take_at_once(task, self.num_ready):
            idle.begin(task)
        else:
            self.queue.put(task)
            self._wake()
        try:
            return await task.done
        finally:
            self.queue.discard(task)  # its caller may have left: then nothing that it holds waits here

    def _wake(self) -> None:
        if (idle := self._idle()) is not None:
            idle.take_next()

    def _idle(self) -> _PrepWorker | None:
        return next((worker for worker in self._workers if worker.is_idle), None)

    def _next_id(self) -> int:
        self._last_id += 1
        return self._last_id


class _PrepWorker:
    """One process and the task that it has in hand."""

    def __init__(self, name: str, program: Program, pool: PrepPool, metrics: Metrics) -> None:
        self.child: Child[ToPrep, FromPrep] = Child(name, program, cast(type[FromPrep], FromPrep), self)
        self.is_ready = False
        self._pool = pool
        self._metrics = metrics
        metrics.worker_restarts.labels(name, "prep")
        self.task: PrepTask | None = None
        self._since = self.child.pulse.mark()
        self._start_seconds = 0.0
        """What its last start took."""
        self._left_at: Mark | None = None
        """When it was seen that nobody waits for its task any more."""
        self._was_late = self._is_ending = False

    @property
    def is_up(self) -> bool:
        """True if it is ready, and gives signs of life."""
        return self.is_ready and not self._is_ending and not self.child.pulse.is_suspect

    @property
    def is_idle(self) -> bool:
        return self.is_up and self.task is None

    def take_next(self) -> None:
        """Start the next task, if it is idle and there is one."""
        if not self.is_idle:
            return
        if (task := self._pool.queue.take(self._pool.num_ready)) is not None:
            self.begin(task)

    def begin(self, task: PrepTask) -> None:
        """Start a task; only if it is idle."""
        self.task = task
        self._since, self._left_at = self.child.pulse.mark(), None
        self.child.send(task.message)

    def end_if_late(self, timeout: float) -> None:
        """Kill the process when its task takes longer than it may, when it gives no sign of life, or when nobody has
        waited for its task for as long as the process takes to start; `lost` tells the caller. How long a decode would
        go on is not known: ended then, it wastes at most twice what knowing would have. That a process is stopped is
        no fault of the picture that it has in hand.
        """
        pulse = self.child.pulse
        spent = pulse.spent(self._since)
        is_late = spent > timeout if self.task is not None else not self.is_ready and spent > START_SECONDS
        trouble = pulse.trouble(is_starting=not self.is_ready) or ("is late" if is_late else "")
        trouble = trouble or ("does what nobody waits for" if self._is_left() else "")
        if trouble and not self._is_ending and self.child.pid is not None:
            facts = {"child": self.child.name, "reason": trouble, "seconds": round(spent, 1)}
            log.warning("prep process is ended", extra=facts)
            self._is_ending, self._was_late = True, is_late and not pulse.stopped_seconds
            self.child.kill()
        elif self.is_idle:
            self.take_next()  # it may have been passed over while it was silent

    def _is_left(self) -> bool:
        """True when nobody has waited for its task for long."""
        if self.task is None or not self.task.done.done():
            return False
        pulse = self.child.pulse
        self._left_at = self._left_at or pulse.mark()
        return pulse.spent(self._left_at) > self._start_seconds

    def started(self) -> None:
        """Wait for its ChildReady."""
        self._since, self._is_ending = self.child.pulse.mark(), False

    def received(self, message: FromPrep) -> None:
        """Settle the task in hand and take the next."""
        if isinstance(message, ChildReady):
            self.is_ready = True
            self._start_seconds = self.child.pulse.spent(self._since)
        elif self.task is not None and not isinstance(message, Heartbeat):
            self._settle(self.task, message)
            self.task = None
        # whoever had its header read asks for the picture in this turn of the loop: it is to be there for the choice
        if self._pool.queue:
            asyncio.get_running_loop().call_soon(self.take_next)

    def _settle(self, task: PrepTask, message: Probed | Prepared | Refused) -> None:
        self._pool.queue.give_back(task)
        if isinstance(message, Prepared) and task.work is not None:
            self._pool.decode_rate.note(task.work, message.seconds)
        if task.done.done():
            return
        if isinstance(message, Refused):
            task.done.set_exception(error_of(message.code, message.message))
        else:
            task.done.set_result(message)

    def lost(self, exit_code: int) -> None:
        """The picture in hand may be what ended the process, or not: one that did not hang has a second try.

        Lost twice it is guilty: its caller is told, nobody else.
        """
        was_ended, was_late, self._was_late, self.is_ready = self._is_ending, self._was_late, False, False
        self._metrics.worker_restarts.labels(self.child.name, "prep").inc()
        task, self.task = self.task, None
        if task is None:
            return
        self._pool.queue.give_back(task)
        if task.done.done():
            return
        task.lost_with += 1
        facts = {"child": self.child.name, "exit_code": exit_code, "times": task.lost_with}
        log.warning("a prep process ended with a picture in hand", extra=facts)
        if was_late:
            task.done.set_exception(Undecodable("decoding this image took too long; re-encode it, or make it smaller"))
        elif task.lost_with <= SECOND_TRIES:
            self._pool.do_again(task)
        elif was_ended:
            task.done.set_exception(Unavailable("the prep processes with this image were lost; try again"))
        elif exit_code == -signal.SIGKILL:  # its own limit is told by the process: this was the machine's
            task.done.set_exception(TooLarge("decoding this image takes more memory than there is; make it smaller"))
        else:
            task.done.set_exception(Undecodable("decoding this image crashes the decoder; re-encode the image"))
