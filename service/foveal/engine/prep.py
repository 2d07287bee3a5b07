"""`PrepPool`: the processes that read, decode and resize pictures. One task at a time each, headers first."""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from dataclasses import dataclass
from typing import cast

from foveal.engine.child import Child, Program, run_all
from foveal.engine.demand import Demand
from foveal.engine.fairness import TurnQueue
from foveal.errors import Draining, TooLarge, Undecodable, error_of
from foveal.ipc.arena import Block
from foveal.ipc.messages import ChildReady, FromPrep, Prepare, Prepared, Probe, Probed, Refused, ToPrep
from foveal.metrics import Metrics
from foveal.types import PixelPlan

log = logging.getLogger(__name__)

MAX_LEAD_PROBES = 64.0
"""How many headers more than its share a caller may have had read and have it remembered."""

START_SECONDS = 60.0
"""A process that is not ready by then hangs."""

SECOND_TRIES = 1
"""Of a picture whose process ended: something else may have ended it, as the kernel does where memory runs out."""

PROBES_IN_A_ROW = 8
"""A header takes a fraction of a picture's time and tells whether to refuse, so headers go first; but where they come
faster than they are read, pictures that were admitted must not wait behind all of them."""


@dataclass(eq=False)
class _Task:
    """Something to do. Holds the blocks that the process reads and writes until it has answered."""

    message: Probe | Prepare
    blocks: tuple[Block, ...]
    done: asyncio.Future[Probed | Prepared]
    queue: TurnQueue[_Task]
    caller: str
    cost: float = 1.0
    """What of its caller's share it uses: pixels, for pictures."""
    lost_with: int = 0
    """Processes that ended with it in hand."""


class PrepPool:
    """Gives tasks to idle processes; headers go before pictures, so that refusals do not wait for decoding."""

    def __init__(self, size: int, program: Program, max_pixels: int, timeout: float, metrics: Metrics) -> None:
        self._max_pixels, self._timeout = max_pixels, timeout
        self._probes: TurnQueue[_Task] = TurnQueue(MAX_LEAD_PROBES)
        self._prepares: TurnQueue[_Task] = TurnQueue(float(max_pixels))
        self._workers = [_PrepWorker(f"prep-{i}", program, self, metrics) for i in range(size)]
        self._last_id = self._probed = 0
        metrics.prep_queue_items.set_function(lambda: len(self._probes) + len(self._prepares))

    @property
    def num_ready(self) -> int:
        """Processes that take work."""
        return sum(worker.is_ready for worker in self._workers)

    def shown(self) -> list[dict[str, object]]:
        """For /info."""
        return [
            {"name": w.child.name, "ready": w.is_ready, "restarts": w.child.restarts, "pid": w.child.pid}
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
        waiting = [*self._probes.all(), *self._prepares.all(), *(w.task for w in self._workers if w.task is not None)]
        for task in waiting:
            if not task.done.done():
                task.done.set_exception(Draining("the server stopped before this image was read; try again"))
        await asyncio.gather(*(worker.child.stop() for worker in self._workers))

    async def probe(self, image: Block, demand: Demand) -> Probed:
        """Format and upright size from the header; raises the refusal."""
        message = Probe(self._next_id(), image.span, self._max_pixels)
        probed = cast(Probed, await self._do(_Task(message, (image,), _future(), self._probes, demand.caller)))
        demand.course.pixels = probed.width * probed.height
        return probed

    async def prepare(
        self, image: Block, rows: Block, plan: PixelPlan, background: tuple[int, int, int], demand: Demand
    ) -> Prepared:
        """Write the patch rows of the picture into `rows`; raises the refusal."""
        message = Prepare(self._next_id(), image.span, rows.span, plan, background, self._max_pixels)
        cost = float(demand.course.pixels + plan.height * plan.width)  # decoded, and written
        task = _Task(message, (image, rows), _future(), self._prepares, demand.caller, cost)
        return cast(Prepared, await self._do(task))

    def next_task(self) -> _Task | None:
        """The first task whose caller is still there: headers before pictures, but not for ever."""
        queues = (self._probes, self._prepares)
        for queue in queues if self._probed < PROBES_IN_A_ROW else reversed(queues):
            while (task := queue.take()) is not None:
                if not task.done.done():
                    self._probed = self._probed + 1 if queue is self._probes else 0
                    return task
        return None

    def do_again(self, task: _Task) -> None:
        """Queue a task once more whose process ended. It takes its caller's next turn: who sends what ends processes
        has no more of them than before.
        """
        task.queue.put_back(task.caller, task, task.cost)
        self._wake()

    async def _do(self, task: _Task) -> Probed | Prepared:
        task.queue.put(task.caller, task, task.cost)
        self._wake()
        try:
            return await task.done
        finally:
            task.queue.discard(task.caller, task)  # its caller may have left: then nothing that it holds waits here

    def _wake(self) -> None:
        idle = next((worker for worker in self._workers if worker.is_idle), None)
        if idle is not None:
            idle.take_next()

    def _next_id(self) -> int:
        self._last_id += 1
        return self._last_id


def _future() -> asyncio.Future[Probed | Prepared]:
    return asyncio.get_running_loop().create_future()


class _PrepWorker:
    """One process and the task that it has in hand."""

    def __init__(self, name: str, program: Program, pool: PrepPool, metrics: Metrics) -> None:
        self.child: Child[ToPrep, FromPrep] = Child(name, program, cast(type[FromPrep], FromPrep), self)
        self.is_ready = False
        self._pool = pool
        self._metrics = metrics
        metrics.worker_restarts.labels(name, "prep")
        self.task: _Task | None = None
        self._since = 0.0
        self._was_late = False

    @property
    def is_idle(self) -> bool:
        return self.is_ready and self.task is None

    def take_next(self) -> None:
        """Start the next task, if there is one."""
        self.task = self._pool.next_task()
        if self.task is not None:
            self._since = time.monotonic()
            self.child.send(self.task.message)

    def end_if_late(self, timeout: float) -> None:
        """Kill the process when its task takes longer than it may; `lost` tells the caller."""
        spent = time.monotonic() - self._since
        is_late = spent > timeout if self.task is not None else not self.is_ready and spent > START_SECONDS
        if self.child.pid is not None and is_late:
            log.warning("prep process is late", extra={"child": self.child.name, "seconds": round(timeout, 1)})
            self._was_late = True
            self.child.kill()

    def started(self) -> None:
        """Wait for its ChildReady."""
        self._since = time.monotonic()

    def received(self, message: FromPrep) -> None:
        """Settle the task in hand and take the next."""
        if isinstance(message, ChildReady):
            self.is_ready = True
        elif self.task is not None:
            task, self.task = self.task, None
            if not task.done.done():
                if isinstance(message, Refused):
                    task.done.set_exception(error_of(message.code, message.message))
                else:
                    task.done.set_result(message)
        self.take_next()

    def lost(self, exit_code: int) -> None:
        """The picture in hand may be what ended the process, or not: one that did not hang has a second try.

        Lost twice it is guilty: its caller is told, nobody else.
        """
        was_late, self._was_late, self.is_ready = self._was_late, False, False
        self._metrics.worker_restarts.labels(self.child.name, "prep").inc()
        task, self.task = self.task, None
        if task is None or task.done.done():
            return
        task.lost_with += 1
        facts = {"child": self.child.name, "exit_code": exit_code, "times": task.lost_with}
        log.warning("a prep process ended with a picture in hand", extra=facts)
        if was_late:
            task.done.set_exception(Undecodable("decoding this image took too long; re-encode it, or make it smaller"))
        elif task.lost_with <= SECOND_TRIES:
            self._pool.do_again(task)
        elif exit_code == -signal.SIGKILL:  # its own limit is told by the process: this was the machine's
            task.done.set_exception(TooLarge("decoding this image takes more memory than there is; make it smaller"))
        else:
            task.done.set_exception(Undecodable("decoding this image crashes the decoder; re-encode the image"))
