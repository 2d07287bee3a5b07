"""The batcher settles every future exactly once: done, failed, lost with a worker, given up."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from foveal.engine.batcher import Batcher
from foveal.engine.demand import Asker, Demand
from foveal.engine.items import Item
from foveal.engine.ladder import Ladder
from foveal.engine.sent import SentPack
from foveal.errors import DeadlineExceeded, Draining, FovealError, Unavailable
from foveal.ipc.arena import Arena
from foveal.ipc.messages import PackDone, PackFailed
from foveal.metrics import Metrics
from foveal.types import GridTHW, Output, TokenBudget
from tests.fakes import value_of

LADDER = Ladder((TokenBudget(64, 8, 1.0), TokenBudget(128, 8, 2.0)))


class FakeWorker:
    """Takes packs and waits for the test to say what became of them."""

    def __init__(self, name: str = "fake", depth: int = 1) -> None:
        self.name, self.depth, self.ladder, self.is_hopeful = name, depth, LADDER, True
        self.packs: list[SentPack] = []

    @property
    def can_take(self) -> bool:
        return self.is_hopeful and len(self.packs) < self.depth

    @property
    def outstanding_milliseconds(self) -> float:
        return sum(pack.milliseconds for pack in self.packs)

    def send(self, pack: SentPack) -> None:
        self.packs.append(pack)


def item(tokens: int = 10) -> Item:
    arena = Arena("test", 4096)
    return Item(GridTHW(1, 2, 2 * tokens), tokens, arena.allocate(8), arena.allocate(8), Output("tokens", "float32"))


def done(*failures: tuple[int, str, str]) -> PackDone:
    return PackDone(1, "static", 0.001, 0.002, 0.003, failures)


class Stage:
    """A batcher with fake workers."""

    def __init__(self, *workers: FakeWorker, max_wait: float = 0.0) -> None:
        self.workers = workers
        self.metrics = Metrics(CollectorRegistry())
        self.batcher = Batcher(max_wait, self.metrics)
        self.batcher.serve(workers)  # type: ignore[arg-type]

    async def submit(
        self, *tokens: int, priority: int = 0, caller: str = "", deadline: float | None = None
    ) -> list[asyncio.Task[Any]]:
        tasks = [
            asyncio.create_task(self.batcher.encode(item(t), Demand(Asker(caller, priority, deadline)))) for t in tokens
        ]
        await asyncio.sleep(0)
        return tasks

    def settle(self, worker: FakeWorker, result: PackDone | PackFailed | None) -> None:
        pack = worker.packs.pop(0)
        self.batcher.settle(worker, pack, result)  # type: ignore[arg-type]
        self.batcher.pump()


@pytest.fixture
async def worker() -> FakeWorker:
    return FakeWorker()


async def test_an_idle_worker_starts_at_once_and_a_busy_one_collects(worker: FakeWorker) -> None:
    stage = Stage(worker)
    tasks = await stage.submit(10)
    assert [len(p.entries) for p in worker.packs] == [1]
    tasks += await stage.submit(10, 20, 30)
    stage.settle(worker, done())
    assert [len(p.entries) for p in worker.packs] == [3]
    stage.settle(worker, done())
    await asyncio.gather(*tasks)


@pytest.mark.parametrize(("code", "level"), [("internal", "ERROR"), ("dtype_overflow", "INFO")])
async def test_an_item_that_failed_fails_alone(
    worker: FakeWorker, code: str, level: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    stage = Stage(worker)
    first = await stage.submit(10)
    tasks = await stage.submit(10, 10)
    stage.settle(worker, done())
    stage.settle(worker, done((1, code, "not finite")))
    results = await asyncio.gather(*first, *tasks, return_exceptions=True)
    assert [isinstance(r, FovealError) and r.code for r in results] == [False, False, code]
    assert [record.levelname for record in caplog.records if record.message == "item failed"] == [level]


async def test_a_failed_pack_is_halved_until_the_guilty_item_fails_alone(worker: FakeWorker) -> None:
    stage = Stage(worker)
    first = await stage.submit(1)
    tasks = await stage.submit(10, 11, 12, 13)
    stage.settle(worker, done())
    while worker.packs:
        guilty = any(entry.num_tokens == 12 for entry in worker.packs[0].entries)
        stage.settle(worker, PackFailed(1, "boom", False) if guilty else done())
    results = await asyncio.gather(*first, *tasks, return_exceptions=True)
    assert [isinstance(r, FovealError) for r in results] == [False, False, False, True, False]


async def test_the_items_of_a_lost_worker_run_elsewhere_once() -> None:
    first, second = FakeWorker("a"), FakeWorker("b")
    stage = Stage(first, second)
    tasks = await stage.submit(10)
    taken = first if first.packs else second
    other = second if first.packs else first
    taken.is_hopeful = False
    stage.settle(taken, None)
    assert len(other.packs) == 1
    stage.settle(other, done())
    await asyncio.gather(*tasks)


async def test_an_item_lost_twice_is_unavailable(worker: FakeWorker) -> None:
    stage = Stage(worker)
    (task,) = await stage.submit(10)
    stage.settle(worker, None)
    stage.settle(worker, None)
    with pytest.raises(Unavailable):
        await task


async def test_when_no_worker_is_expected_back_everyone_is_told(worker: FakeWorker) -> None:
    stage = Stage(worker)
    running = await stage.submit(10)
    waiting = await stage.submit(10, 10)
    worker.is_hopeful = False
    stage.settle(worker, None)
    results = await asyncio.gather(*running, *waiting, return_exceptions=True)
    assert all(isinstance(result, Unavailable) for result in results)


async def test_entries_of_gone_callers_are_not_packed(worker: FakeWorker) -> None:
    stage = Stage(worker)
    running = await stage.submit(10)
    gone, stays = await stage.submit(20, 30)
    gone.cancel()
    await asyncio.sleep(0)
    stage.settle(worker, done())
    assert [entry.num_tokens for entry in worker.packs[0].entries] == [30]
    assert value_of(stage.metrics.queue_items) == 0 == value_of(stage.metrics.queue_tokens)
    stage.settle(worker, done())
    await asyncio.gather(*running, stays)


async def test_packs_go_to_the_worker_with_least_in_hand_and_ties_rotate() -> None:
    workers = [FakeWorker(str(i), depth=2) for i in range(2)]
    stage = Stage(*workers)
    tasks = []
    for _ in range(4):
        tasks += await stage.submit(10)
    assert [len(w.packs) for w in workers] == [2, 2]
    for w in workers * 2:
        stage.settle(w, done())
    await asyncio.gather(*tasks)


async def test_an_oversized_item_runs_eager_and_says_why(worker: FakeWorker) -> None:
    stage = Stage(worker)
    tasks = await stage.submit(500)
    assert worker.packs[0].budget is None and worker.packs[0].reason == "oversize"
    stage.settle(worker, done())
    await asyncio.gather(*tasks)


async def test_a_wait_collects_until_the_largest_budget_is_full(worker: FakeWorker) -> None:
    stage = Stage(worker, max_wait=1000.0)
    tasks = await stage.submit(10, 10)
    assert not worker.packs
    tasks += await stage.submit(108)
    assert [len(pack.entries) for pack in worker.packs] == [3]
    stage.settle(worker, done())
    await asyncio.gather(*tasks)


async def test_a_stopped_batcher_tells_everyone_who_waits(worker: FakeWorker) -> None:
    stage = Stage(worker)
    tasks = await stage.submit(10) + await stage.submit(10, 10)
    stage.batcher.stop()
    assert all(isinstance(r, Draining) for r in await asyncio.gather(*tasks, return_exceptions=True))
    stage.settle(worker, done())  # what comes too late is nobody's


async def test_a_bug_in_choosing_a_pack_stops_nobody(
    worker: FakeWorker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stage = Stage(worker)
    monkeypatch.setattr("foveal.engine.batcher.next_pack", lambda *_: 1 / 0)
    tasks = await stage.submit(30, 10, 20, 500)
    for tokens in (30, 10, 20, 500):
        assert [entry.num_tokens for entry in worker.packs[0].entries] == [tokens]
        assert (worker.packs[0].budget is None) == (tokens == 500)
        stage.settle(worker, done())
    await asyncio.gather(*tasks)
    assert "this is a bug" in caplog.text


async def test_who_was_served_comes_after_those_who_were_not(worker: FakeWorker) -> None:
    stage = Stage(worker)
    crowd = await stage.submit(*[100] * 10, caller="bulk")
    single = await stage.submit(100, caller="interactive")
    served = []
    while worker.packs:
        served.append(worker.packs[0].entries[0].caller)
        stage.settle(worker, done())
    assert served[:3] == ["bulk", "bulk", "interactive"], "one pack ran, one may go before"
    await asyncio.gather(*crowd, *single)


async def test_entries_whose_deadline_has_passed_are_told_and_not_packed(worker: FakeWorker) -> None:
    stage = Stage(worker)
    running = await stage.submit(10)
    late, stays = (await stage.submit(20, deadline=time.monotonic() - 1)) + await stage.submit(30)
    stage.settle(worker, done())
    assert [entry.num_tokens for entry in worker.packs[0].entries] == [30]
    with pytest.raises(DeadlineExceeded):
        await late
    stage.settle(worker, done())
    await asyncio.gather(*running, stays)


async def test_what_comes_while_others_wait_takes_its_turn_behind_them(worker: FakeWorker) -> None:
    stage = Stage(worker)
    worker.depth = 0
    tasks = await stage.submit(120)
    worker.depth = 1
    tasks += await stage.submit(110)
    for tokens in (120, 110):
        assert [entry.num_tokens for entry in worker.packs[0].entries] == [tokens]
        stage.settle(worker, done())
    await asyncio.gather(*tasks)


async def test_what_is_late_is_not_sent_although_nothing_waits_before_it(worker: FakeWorker) -> None:
    stage = Stage(worker)
    (task,) = await stage.submit(10, deadline=time.monotonic() - 1)
    with pytest.raises(DeadlineExceeded):
        await task
    assert not worker.packs
