"""What the queue costs the api's loop: an arrival while workers are busy, and a pack chosen, with ever more waiting.

python -m tests.load.queue
"""

from __future__ import annotations

import asyncio
import time
from statistics import median
from typing import Any

from prometheus_client import CollectorRegistry

from foveal.engine.batcher import Batcher
from foveal.engine.demand import Asker, Demand
from foveal.engine.items import Item
from foveal.engine.ladder import Ladder, inferred_budgets
from foveal.engine.worker import SentPack
from foveal.ipc.arena import Arena
from foveal.metrics import Metrics
from foveal.types import GridTHW, Output, TokenBudget

BLOCK = Arena("queue", 1 << 12).allocate(8)
ITEM = Item(GridTHW(1, 16, 16), 64, BLOCK, BLOCK, Output("tokens", "bfloat16"))
ROUNDS = 15
PACKS = 5
"""Of a run, where so many images wait that they hardly get fewer."""
PATIENCE_SECONDS = 60.0


class BusyWorker:
    """Takes a pack when told to, and never answers."""

    name, is_hopeful, can_take, outstanding_milliseconds = "busy", True, False, 0.0
    ladder = Ladder(tuple(TokenBudget(t, min(t, 64), 0.5 + t * 0.0066, 0, True) for t in inferred_budgets(16384)))

    def send(self, pack: SentPack) -> None:
        """Be busy with a pack."""
        self.can_take = False


async def measure(num_waiting: int, num_callers: int) -> tuple[float, float]:
    """Milliseconds of an arrival and of a pack."""
    batcher, worker = Batcher(0.0, Metrics(CollectorRegistry())), BusyWorker()
    workers: Any = [worker]
    batcher.serve(workers)
    deadline = time.monotonic() + PATIENCE_SECONDS

    def ask(i: int) -> asyncio.Task[Any]:
        asker = Asker(f"caller-{i % num_callers}", 0, deadline + i / 1000)
        return asyncio.create_task(batcher.encode(ITEM, Demand(asker)))

    tasks = [ask(i) for i in range(num_waiting)]
    await asyncio.sleep(0)
    tasks += [ask(i) for i in range(ROUNDS)]
    began = time.process_time()
    await asyncio.sleep(0)
    arrival = (time.process_time() - began) / ROUNDS
    packs = []
    for _ in range(1 if num_waiting < 1000 else PACKS):
        worker.can_take = True
        began = time.process_time()
        batcher.pump()
        packs.append(time.process_time() - began)
    batcher.stop()
    await asyncio.gather(*tasks, return_exceptions=True)
    return arrival * 1e3, median(packs) * 1e3


def main() -> None:
    """Print the table."""
    for num_waiting in (8, 100, 1000, 4000):
        row = []
        for num_callers in (7, num_waiting):
            runs = [asyncio.run(measure(num_waiting, num_callers)) for _ in range(ROUNDS)]
            row.append((median(run[0] for run in runs), median(run[1] for run in runs)))
        (arrival, few), (_, many) = row
        print(f"| {num_waiting} | {arrival:.3f} ms | {few:.2f} ms | {many:.2f} ms |")


if __name__ == "__main__":
    main()
