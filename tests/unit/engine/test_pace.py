"""How packs ran of late: a median, of the last ones, for a while."""

from __future__ import annotations

from foveal.engine.pace import FORGET_SECONDS, SAMPLES, Pace


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_one_that_was_held_up_does_not_count() -> None:
    pace = Pace(Clock())
    for took in (10.0, 11.0, 4000.0, 9.0, 10.0):
        pace.note(64, 10.0, took)
    assert pace.lately(64) == 1.0 and pace.slowness(64) == 1.0


def test_what_was_not_run_is_expected_to_be_as_slow_as_the_others() -> None:
    pace = Pace(Clock())
    assert pace.slowness(64) == 1.0 and pace.lately(64) is None and not pace.knows(64)
    pace.note(32, 10.0, 30.0)
    assert pace.slowness(64) == 3.0 and pace.lately(64) is None


def test_it_follows_the_last_ones_and_forgets() -> None:
    clock = Clock()
    pace = Pace(clock)
    pace.note(64, 10.0, 10.0)
    for _ in range(SAMPLES):
        pace.note(64, 10.0, 60.0)
    assert pace.lately(64) == 6.0
    clock.now = FORGET_SECONDS
    assert pace.lately(64) is None, "or what was refused once for being slow would never be measured again"
    pace.forget()
    assert not pace.knows(64) and pace.slowness(64) == 1.0


def test_quicker_than_predicted_is_no_promise() -> None:
    pace = Pace(Clock())
    pace.note(64, 10.0, 1.0)
    assert pace.slowness(64) == 1.0 and pace.lately(64) == 0.1
