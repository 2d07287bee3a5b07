"""How far an image has come, as the log and traces tell it: through the queue, a worker, and another after a loss."""

from __future__ import annotations

import asyncio

import pytest

from foveal.engine.course import Course
from foveal.engine.demand import Demand

from .test_batcher import FakeWorker, Stage, done, item


def test_stages_that_end_now_follow_each_other() -> None:
    course = Course()
    course.passed(copy_in=1.0, encode=2.0)
    course.passed(encode=4.0)
    first, second, third = course.stages
    assert (first.name, second.name) == ("copy_in", "encode")
    assert first.ended == second.began and second.seconds == pytest.approx(2.0) and third.ended >= second.ended
    assert course.seconds() == pytest.approx({"copy_in": 1.0, "encode": 6.0})


async def test_an_image_tells_where_it_is_and_afterwards_how_it_ran() -> None:
    worker, demand = FakeWorker(), Demand()
    stage = Stage(worker)
    task = asyncio.create_task(stage.batcher.encode(item(), demand))
    await asyncio.sleep(0)
    assert demand.course.under_way == "encode"
    stage.settle(worker, None)  # its worker is lost: it waits, and is given out again
    assert demand.course.under_way == "encode" and not demand.course.stages
    stage.settle(worker, done())
    await task
    assert (demand.course.mode, demand.course.budget) == ("static", 64)
    assert [one.name for one in demand.course.stages] == ["queue", "copy_in", "encode", "copy_out"]
    ends = [one.ended for one in demand.course.stages]
    assert ends[1:] == sorted(ends[1:]) and demand.course.stages[0].seconds >= 0


async def test_an_image_that_waits_behind_others_is_in_the_queue() -> None:
    worker = FakeWorker()
    stage = Stage(worker)
    await stage.submit(10)
    demand = Demand()
    demand.course.under_way = "queue"  # as the engine says when its rows are ready
    task = asyncio.create_task(stage.batcher.encode(item(), demand))
    await asyncio.sleep(0)
    assert demand.course.under_way == "queue"
    worker.is_hopeful = False
    stage.settle(worker, None)
    with pytest.raises(Exception, match="no worker is left"):
        await task
    assert demand.course.under_way == "queue"
