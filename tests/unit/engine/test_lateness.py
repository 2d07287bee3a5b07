"""When a worker hangs with a pack in hand: by time on a GPU, by what its process does on a CPU."""

from __future__ import annotations

from foveal.engine.lateness import COMPUTES_FACTOR, LATE_FACTOR, UNUSUAL_SECONDS, Patience, Watch
from foveal.engine.pace import kind_of
from foveal.engine.sent import SentPack
from foveal.types import TokenBudget
from tests.unit.engine.test_pulse import Child

PATIENCE = Patience(start=100.0, pack=10.0)


def pack(seconds: float, is_captured: bool = True) -> SentPack:
    return SentPack((), 64, TokenBudget(64, 8, seconds * 1000, 0, is_captured), "", 0.0, seconds * 1000)


class Stage:
    """A watched worker; it beats all the time."""

    def __init__(self, threads: int) -> None:
        self.child = Child()
        self.watch = Watch(self.child.pulse, threads)

    def after(self, seconds: float, sent: SentPack | None, cpu: float = 0.0, step: float = 0.5) -> str:
        self.watch.goes_on()
        self.child.passes(seconds, cpu=cpu, step=step, says=True)
        return self.watch.trouble(False, sent, PATIENCE)


def test_a_worker_without_a_pack_may_wait_for_ever() -> None:
    assert not Stage(0).after(1000, None)
    assert not Stage(2).after(1000, None)


def test_on_a_gpu_a_pack_has_some_seconds_or_a_few_times_what_was_expected() -> None:
    stage = Stage(0)
    assert not stage.after(10, pack(0.01))
    assert stage.after(11, pack(0.01)) == "does not finish a pack"
    assert not stage.after(LATE_FACTOR * 4, pack(4.0))
    assert stage.after(LATE_FACTOR * 4 + 1, pack(4.0))


def test_a_machine_that_became_slower_is_measured_and_not_blamed() -> None:
    stage, sent = Stage(0), pack(4.0)
    for _ in range(4):
        stage.watch.pace.note(sent.kind, 4000, 12_000)
    assert not stage.after(LATE_FACTOR * 12, sent)
    assert stage.after(LATE_FACTOR * 12 + 1, sent)


def test_what_may_wait_for_a_compiler_or_a_capture_has_more_time() -> None:
    stage, first = Stage(0), pack(0.01, is_captured=False)
    assert not stage.after(60, first)
    assert stage.after(11 + UNUSUAL_SECONDS, first)
    stage.watch.pace.note(first.kind, 10, 10)
    assert stage.after(11, first)
    stage.watch.is_capturing = True
    assert not stage.after(60, pack(0.01))


def test_on_a_cpu_a_process_that_waits_instead_of_computing_hangs() -> None:
    stage = Stage(2)
    assert not stage.after(10, pack(0.3))
    assert stage.after(11, pack(0.3)) == "does nothing with a pack in hand"
    assert stage.after(11, pack(5.0)), "also with one that takes long"
    assert not stage.after(40, pack(20.0))
    assert stage.after(41, pack(20.0))


def test_on_a_busy_machine_a_cpu_worker_that_gets_on_is_never_late() -> None:
    assert not Stage(2).after(200, pack(1.0), cpu=0.08), "it gets a twelfth of one processor"


def test_on_a_cpu_a_pack_that_computes_without_end_is_ended() -> None:
    stage = Stage(2)
    assert not stage.after(10, pack(0.3), cpu=2.0)
    assert stage.after(11, pack(0.3), cpu=2.0) == "computes without end"
    assert not stage.after(COMPUTES_FACTOR * 40, pack(40.0), cpu=2.0), "a picture of 16 megapixels on a slow one"


def test_a_parent_that_was_away_takes_no_pack_to_be_late() -> None:
    for threads in (0, 2):
        assert not Stage(threads).after(3600, pack(0.01), step=3600)


def test_a_start_has_its_own_time() -> None:
    stage = Stage(2)
    stage.child.passes(100, says=True)
    assert not stage.watch.trouble(True, None, PATIENCE)
    stage.child.passes(1, says=True)
    assert stage.watch.trouble(True, None, PATIENCE) == "says nothing in its start"


def test_eager_packs_are_of_one_kind_within_a_factor_of_two() -> None:
    assert kind_of(256, 100) == 256
    assert kind_of(0, 8200) == kind_of(0, 16_000) != kind_of(0, 8000)
