"""Which task a prep process takes next."""

from __future__ import annotations

import asyncio

from prometheus_client import CollectorRegistry

from foveal.engine.child import Program
from foveal.engine.demand import Asker, Demand
from foveal.engine.memory import Allocator
from foveal.engine.prep import PROBES_IN_A_ROW, PrepPool
from foveal.ipc.arena import Arena
from foveal.ipc.messages import Prepare, Probe
from foveal.metrics import Metrics
from foveal.types import PixelPlan


async def test_headers_go_first_but_pictures_that_were_admitted_are_not_starved() -> None:
    arena = Arena("images", 1 << 16)
    pool = PrepPool(1, Program("nothing", {}, {}), 1000, 1.0, Metrics(CollectorRegistry()))
    block = await Allocator(arena).block(16)
    plan = PixelPlan(28, 28, 14, 2)
    asked = [asyncio.create_task(pool.prepare(block, block, plan, (0, 0, 0), Demand())) for _ in range(2)]
    asked += [asyncio.create_task(pool.probe(block, Demand())) for _ in range(3 * PROBES_IN_A_ROW)]
    await asyncio.sleep(0)
    taken = [pool.next_task() for _ in range(2 * PROBES_IN_A_ROW + 2)]
    kinds = [type(task.message) for task in taken if task is not None]
    assert kinds == [*[Probe] * PROBES_IN_A_ROW, Prepare] * 2
    for task in asked:
        task.cancel()
    await asyncio.wait(asked)


async def test_small_pictures_go_before_the_huge_ones_of_another_caller() -> None:
    """Turns count pixels: those of the picture as sent, which is what decoding costs."""
    pool = PrepPool(1, Program("nothing", {}, {}), 64_000_000, 1.0, Metrics(CollectorRegistry()))
    block = await Allocator(Arena("images", 1 << 16)).block(16)
    plan = PixelPlan(28, 28, 14, 2)
    huge, small = Demand(Asker("huge")), Demand(Asker("small"))
    huge.course.pixels, small.course.pixels = 64_000_000, 50_000
    asked = [
        asyncio.create_task(pool.prepare(block, block, plan, (0, 0, 0), demand))
        for demand in (huge, huge, huge, *[small] * 20)
    ]
    await asyncio.sleep(0)
    callers = [task.caller for _ in asked if (task := pool.next_task()) is not None]
    assert callers == [*["small"] * 20, *["huge"] * 3]
    for work in asked:
        work.cancel()
    await asyncio.wait(asked)
