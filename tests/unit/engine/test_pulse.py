"""Signs of life: what a child says, what the kernel says of it, and a parent that was late itself."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveal.engine.pulse import SILENT_SECONDS, STOPPED_SECONDS, SUSPECT_SECONDS, Pulse, Vitals, vitals_of


class Child:
    """A process as the kernel shows it, and the parent's clock."""

    def __init__(self) -> None:
        self.now, self.vitals = 0.0, Vitals("S", 0.0)
        self.pulse = Pulse(lambda: self.now, lambda pid: self.vitals)
        self.pulse.began(1)

    def passes(self, seconds: float, cpu: float = 0.0, step: float = 0.5, says: bool = False) -> None:
        end = self.now + seconds
        while self.now < end:
            self.now += step
            self.vitals = Vitals(self.vitals.state, self.vitals.cpu_seconds + cpu * step)
            if says:
                self.pulse.heard()
            self.pulse.look()

    @property
    def trouble(self) -> str:
        return self.pulse.trouble(is_starting=False)


@pytest.fixture
def child() -> Child:
    return Child()


def test_who_says_nothing_and_does_nothing_is_suspected_and_then_hangs(child: Child) -> None:
    child.passes(SUSPECT_SECONDS)
    assert not child.pulse.is_suspect
    child.passes(1.0)
    assert child.pulse.is_suspect and not child.trouble
    child.passes(SILENT_SECONDS)
    assert child.trouble == "gives no sign of life"
    child.pulse.heard()
    assert not child.trouble and not child.pulse.is_suspect


def test_who_computes_or_waits_for_a_processor_may_be_silent(child: Child) -> None:
    child.passes(60.0, cpu=0.2)
    assert not child.trouble and not child.pulse.is_suspect
    child.vitals = Vitals("R", child.vitals.cpu_seconds)
    child.passes(60.0)
    assert not child.trouble and not child.pulse.is_suspect


def test_a_stopped_process_is_noticed_also_in_its_start_and_given_nothing_from_the_first_look_on(child: Child) -> None:
    child.passes(20.0, says=True)
    child.vitals = Vitals("T", child.vitals.cpu_seconds)
    child.passes(0.5)
    assert child.pulse.is_suspect and not child.trouble
    child.passes(STOPPED_SECONDS)
    assert child.trouble == child.pulse.trouble(is_starting=True) == "is stopped"


def test_a_process_that_imports_in_silence_is_left_alone(child: Child) -> None:
    child.passes(300.0)
    assert not child.pulse.trouble(is_starting=True)


@pytest.mark.parametrize("seconds", [20.0, 3600.0, 1e7], ids=["a late loop", "suspended", "for months"])
def test_a_parent_that_was_away_blames_nobody(child: Child, seconds: float) -> None:
    child.passes(5.0, says=True)
    mark = child.pulse.mark()
    child.passes(seconds, step=seconds)
    assert not child.trouble and child.pulse.spent(mark) <= 1.0


@given(st.lists(st.floats(0.0, 100.0), max_size=60))
def test_who_speaks_whenever_the_parent_listens_is_never_suspected(steps: list[float]) -> None:
    child = Child()
    for step in steps:
        child.now += step
        child.pulse.look()
        child.pulse.heard()
        assert not child.trouble and not child.pulse.is_suspect


def test_the_kernel_tells_of_a_process_that_there_is() -> None:
    vitals = vitals_of(os.getpid())
    assert vitals is not None and vitals.state == "R" and vitals.cpu_seconds > 0
    assert vitals_of(2**22 + 1) is None


def test_of_a_process_that_is_gone_its_socket_tells() -> None:
    pulse = Pulse(lambda: 0.0, lambda pid: None)
    pulse.began(1)
    pulse.look()
    assert not pulse.is_suspect
