"""The parent's handle to one worker: what it is given, what is taken back, and whether it is up."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from foveal.engine.child import Program
from foveal.engine.items import Entry
from foveal.engine.lateness import Patience
from foveal.engine.pulse import Vitals
from foveal.engine.sent import SentPack
from foveal.engine.worker import Worker
from foveal.ipc.messages import Configure, GiveUp, PackDone, PackGivenUp, Progress, RunPack, WorkerReady
from foveal.metrics import Metrics
from foveal.types import TokenBudget
from tests.fakes import value_of
from tests.unit.engine.test_batcher import item

BUDGET = TokenBudget(64, 8, 10.0)
READY = WorkerReady("cpu", "float32", "none", (BUDGET,), 0, 0, 0.0, "none")
PATIENCE = Patience(600.0, 10.0)


class Stage:
    """A worker whose process is the test."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, device: str = "cpu") -> None:
        self.metrics = Metrics(CollectorRegistry())
        self.settled: list[tuple[SentPack, Any]] = []
        self.sent: list[object] = []
        self.ended = 0
        self.vitals = Vitals("S", 0.0)
        configure = Configure("", "dummy", device, "auto", (64,), 8, 2)  # type: ignore[arg-type]
        self.worker = Worker("one", Program("none", {}, {}), configure, 4, 2, self.metrics, self._settle, lambda: None)
        child = self.worker.child
        child.pid = 1
        child.pulse._look_at = lambda pid: self.vitals
        child.pulse._clock = self._clock
        child.pulse.began(1)
        self.now = 0.0
        monkeypatch.setattr(child, "send", self.sent.append)
        monkeypatch.setattr(child, "end_hanging", self._end)
        self.worker.started()
        self.worker.received(READY)

    def _clock(self) -> float:
        return getattr(self, "now", 0.0)

    def _settle(self, worker: Worker, pack: SentPack, result: Any) -> None:
        self.settled.append((pack, result))

    def _end(self) -> None:
        self.ended += 1

    def give(self, count: int) -> SentPack:
        entries = tuple(Entry(item(), asyncio.get_running_loop().create_future(), 0.0) for _ in range(count))
        pack = SentPack(entries, 10 * count, BUDGET, "", 0.0, 10.0)
        self.worker.send(pack)
        return pack

    def passes(self, seconds: float) -> None:
        for _ in range(int(seconds * 2)):
            self.now += 0.5
            self.worker.child.pulse.look()
            self.worker.end_if_late(PATIENCE)

    def given_up(self) -> list[object]:
        return [message for message in self.sent if isinstance(message, GiveUp)]

    @property
    def up(self) -> float:
        return value_of(self.metrics.worker_up)


@pytest.fixture
async def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    return Stage(monkeypatch)


async def test_a_pack_is_given_up_when_the_last_who_waited_has_gone(stage: Stage) -> None:
    pack = stage.give(3)
    for entry in pack.entries:
        assert not stage.given_up()
        entry.done.cancel()
        await asyncio.sleep(0)
    assert stage.given_up() == [GiveUp(1)]
    stage.worker.received(PackGivenUp(1))
    assert not stage.settled and not stage.worker.in_hand
    assert stage.metrics.packs.labels("one", "given_up", "unwanted")._value.get() == 1


async def test_a_pack_of_which_one_image_is_wanted_goes_on_for_all(stage: Stage) -> None:
    pack = stage.give(2)
    pack.entries[0].done.cancel()
    await asyncio.sleep(0)
    assert not stage.given_up()


async def test_a_pack_that_was_answered_is_not_given_up(stage: Stage) -> None:
    pack = stage.give(1)
    stage.worker.received(PackDone(1, "static", 0.0, 0.01, 0.0))
    pack.entries[0].done.set_result(None)  # type: ignore[arg-type]
    await asyncio.sleep(0)
    assert not stage.given_up() and [p for p, _ in stage.settled] == [pack]


async def test_an_answer_that_crossed_the_word_to_give_up_is_taken(stage: Stage) -> None:
    pack = stage.give(1)
    pack.entries[0].done.cancel()
    await asyncio.sleep(0)
    stage.worker.received(PackDone(1, "static", 0.0, 0.01, 0.0))
    assert [p for p, _ in stage.settled] == [pack] and not stage.worker.in_hand


async def test_a_gpu_is_not_asked_to_give_up(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch, "cuda")
    stage.give(1).entries[0].done.cancel()
    await asyncio.sleep(0)
    assert [type(message) for message in stage.sent] == [Configure, RunPack]


async def test_a_silent_worker_is_not_up_gets_nothing_and_is_ended_once(stage: Stage) -> None:
    stage.passes(2)
    assert stage.up == 1 and stage.worker.can_take
    stage.passes(2)
    assert stage.up == 0 and not stage.worker.can_take and not stage.ended
    assert stage.worker.shown()["ready"] is False and stage.worker.shown_stage == "gives no sign of life"
    stage.worker.child.pulse.heard()
    stage.passes(0.5)
    assert stage.up == 1 and stage.worker.can_take
    stage.passes(30)
    assert stage.ended == 1 and stage.up == 0


async def test_the_packs_of_a_worker_that_was_ended_are_handed_back(stage: Stage) -> None:
    pack = stage.give(2)
    stage.vitals = Vitals("T", 0.0)
    stage.passes(5)
    assert stage.ended == 1 and not stage.settled, "while it lives it could still write what it was to write"
    stage.worker.lost(-9)
    assert stage.settled == [(pack, None)] and stage.up == 0


async def test_packs_behind_a_capture_wait_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch, "cuda")
    stage.worker.received(Progress("ready, capturing a graph"))
    stage.give(1)
    for _ in range(40):
        stage.worker.child.pulse.heard()
        stage.passes(1)
    assert not stage.ended and stage.worker.shown_stage == "ready, capturing a graph"
