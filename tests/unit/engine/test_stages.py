"""How far an image has come, as the log and traces tell it: through the queue, a worker, and another after a loss."""

from __future__ import annotations

import asyncio

import pytest

from foveal.engine.demand import Demand
from foveal.engine.stages import Stages

from .test_batcher import FakeWorker, Stage, done, item


def test_the_stages_of_a_pack_that_ends_now_follow_each_other() -> None:
    stages = Stages()
    stages.record("prep", 0.5)
    stages.record_pack(100.0, 102.0, 1.0, 2.0, 0.25)
    prep, queue, first, second, third = stages.passed
    assert [stage.name for stage in stages.passed] == ["prep", "queue", "copy_in", "encode", "copy_out"]
    assert (queue.began, queue.ended) == (100.0, 102.0) and prep.seconds == pytest.approx(0.5)
    assert first.ended == second.began and second.ended == third.began and second.seconds == pytest.approx(2.0)
    stages.record("prep", 1.0)
    assert stages.seconds() == pytest.approx(
        {"prep": 1.5, "queue": 2.0, "copy_in": 1.0, "encode": 2.0, "copy_out": 0.25}
    )


async def test_an_image_tells_where_it_is_and_afterwards_how_it_ran() -> None:
    worker, demand = FakeWorker(), Demand()
    stage = Stage(worker)
    task = asyncio.create_task(stage.batcher.encode(item(), demand))
    await asyncio.sleep(0)
    assert demand.stages.current == "encode"
    stage.settle(worker, None)  # its worker is lost: it waits, and is given out again
    assert demand.stages.current == "encode" and not demand.stages.passed
    stage.settle(worker, done())
    await task
    assert (demand.stages.mode, demand.stages.budget) == ("static", 64)
    assert [one.name for one in demand.stages.passed] == ["queue", "copy_in", "encode", "copy_out"]
    ends = [one.ended for one in demand.stages.passed]
    assert ends[1:] == sorted(ends[1:]) and demand.stages.passed[0].seconds >= 0


async def test_an_image_that_waits_behind_others_is_in_the_queue() -> None:
    worker = FakeWorker()
    stage = Stage(worker)
    await stage.submit(10)
    demand = Demand()
    demand.stages.current = "queue"  # as the engine says when its rows are ready
    task = asyncio.create_task(stage.batcher.encode(item(), demand))
    await asyncio.sleep(0)
    assert demand.stages.current == "queue"
    worker.is_hopeful = False
    stage.settle(worker, None)
    with pytest.raises(Exception, match="no worker is left"):
        await task
    assert demand.stages.current == "queue"
