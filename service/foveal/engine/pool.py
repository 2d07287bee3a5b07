"""`Pool`: all workers behind one `encode`; whether they are ready, and what they wait for."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from foveal.engine.batcher import Batcher
from foveal.engine.child import Program, run_all
from foveal.engine.demand import Demand
from foveal.engine.forecast import Forecast
from foveal.engine.gpu_watch import GpuWatch
from foveal.engine.items import Item
from foveal.engine.lateness import Patience
from foveal.engine.worker import Worker
from foveal.ipc.messages import Configure
from foveal.metrics import Metrics

MAX_STARTS = 5
"""Of each worker, when none has ever been ready: what fails so often fails for a reason that waiting does not mend."""


@dataclass(frozen=True)
class Place:
    """Where a worker runs: its name, variables for its process, and packs it may have in hand."""

    name: str
    environment: Mapping[str, str]
    depth: int


class Pool:
    """Data parallel: each worker has the whole model, packs go to whoever is free first."""

    def __init__(
        self,
        places: Sequence[tuple[Place, Program]],
        configure: Configure,
        merge_area: int,
        quorum: int,
        patience: Patience,
        request_seconds: float,
        batcher: Batcher,
        metrics: Metrics,
        gpus: GpuWatch | None = None,
    ) -> None:
        """`gpus` lives as long as the workers; None without a GPU."""
        self.quorum, self._patience, self._gpus = quorum, patience, gpus
        self.failed_to_start = asyncio.Event()
        self._batcher = batcher
        self.workers = [
            Worker(place.name, program, configure, merge_area, place.depth, metrics, batcher.settle, self._changed)
            for place, program in places
        ]
        batcher.serve(self.workers)
        self.forecast = Forecast(self.workers, request_seconds, metrics)

    @property
    def num_ready(self) -> int:
        """Workers that take packs."""
        return sum(worker.is_up for worker in self.workers)

    @property
    def is_ready(self) -> bool:
        """True when as many workers as the quorum are ready."""
        return self.num_ready >= self.quorum

    @property
    def is_hopeful(self) -> bool:
        """False when no worker is there nor expected back."""
        return any(worker.is_hopeful for worker in self.workers)

    def waits_for(self) -> str:
        """What `/ready` says while it is not."""
        stages = "; ".join(f"{w.name}: {w.failure or w.shown_stage}" for w in self.workers if not w.is_up)
        return f"{self.num_ready} of {len(self.workers)} workers ready, {self.quorum} needed ({stages})"

    def expect(self, num_tokens: int, num_patches: int, demand: Demand) -> AbstractContextManager[None]:
        """Count an image that will come; raises TooLarge, DeadlineExceeded or Overloaded if it cannot be in time."""
        return self.forecast.expect(num_tokens, num_patches, demand)

    async def encode(self, item: Item, demand: Demand) -> None:
        """Queue an item and wait until its embedding is written; raises Unavailable, DeadlineExceeded or `internal`."""
        return await self._batcher.encode(item, demand)

    async def run(self) -> None:
        """Keep the processes running until `stop`."""
        async with asyncio.TaskGroup() as group:
            group.create_task(run_all([worker.child for worker in self.workers], self._end_late))
            if self._gpus is not None:
                group.create_task(self._gpus.run())

    def _end_late(self) -> None:
        for worker in self.workers:
            worker.end_if_late(self._patience)

    async def stop(self) -> None:
        """Tell everyone who still waits, and end the processes."""
        self._batcher.stop()
        if self._gpus is not None:
            self._gpus.stop()
        await asyncio.gather(*(worker.child.stop() for worker in self.workers))

    @property
    def refusal(self) -> str | None:
        """What of the settings keeps a worker from starting, in its own words; None if none has said."""
        return next((worker.failure for worker in self.workers if worker.failure), None)

    @property
    def ends(self) -> str:
        """How the last starts ended."""
        return "; ".join(worker.ended for worker in self.workers if worker.ended)

    def _changed(self) -> None:
        self._batcher.pump()
        never_ready = not any(worker.was_ready for worker in self.workers)
        if never_ready and all(worker.failure or worker.failed_starts >= MAX_STARTS for worker in self.workers):
            self.failed_to_start.set()
