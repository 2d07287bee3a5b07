"""What cannot be in time is refused at the door; what could be never is."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from foveal.engine.demand import Asker, Demand
from foveal.engine.estimates import LATELY_SHARE, LEAST_SHARE, UNFINISHED_FACTOR, Estimates
from foveal.engine.forecast import Forecast
from foveal.engine.items import Entry, Item
from foveal.engine.ladder import Attention, Ladder
from foveal.engine.pace import Pace
from foveal.engine.sent import SentPack
from foveal.errors import DeadlineExceeded, FovealError, Overloaded, TooLarge
from foveal.ipc.arena import Arena
from foveal.ipc.messages import LeastCost
from foveal.metrics import Metrics
from foveal.types import GridTHW, Output, TokenBudget

LADDER = Ladder((TokenBudget(64, 8, 64.0), TokenBudget(256, 8, 256.0)), Attention(1e-3, 64, 1))
LEAST = LeastCost(ms_per_patch=0.5 / LEAST_SHARE, ms_per_patch2=1e-3 / LEAST_SHARE)
REQUEST_SECONDS = 60.0
FITS, TOO_LARGE = 7000, 9000
"""Patches of images that take 52 and 85 s at least."""


@dataclass
class FakeWorker:
    """Says what it knows."""

    least: LeastCost | None = LEAST
    ladder: Ladder = LADDER
    is_up: bool = True
    in_hand: list[SentPack] = field(default_factory=list)
    pace: Pace = field(default_factory=Pace)

    def __post_init__(self) -> None:
        self.estimates = Estimates(self.pace)
        self.estimates.begin_anew(self.ladder, self.least)


def forecast(*workers: FakeWorker) -> Forecast:
    return Forecast(workers, REQUEST_SECONDS, Metrics(CollectorRegistry()))


def demand(seconds: float | None = REQUEST_SECONDS, caller: str = "", priority: int = 0) -> Demand:
    return Demand(Asker(caller, priority, None if seconds is None else time.monotonic() + seconds))


def sent(patches: int, seconds_ago: float, caller: str = "") -> SentPack:
    arena = Arena("test", 4096)
    item = Item(GridTHW(1, 1, patches), patches, arena.allocate(8), arena.allocate(8), Output("tokens", "float32"))
    entry = Entry(item, asyncio.get_running_loop().create_future(), 0.0, demand(None, caller))
    return SentPack((entry,), patches, None, "oversize", time.monotonic() - seconds_ago, 1000.0)


def refusal(of: Forecast, patches: int, wanted: Demand) -> FovealError | None:
    try:
        with of.expect(patches, patches, wanted):
            return None
    except FovealError as error:
        return error


def test_what_no_idle_server_does_in_its_whole_time_is_too_large_and_the_sentence_says_what_helps() -> None:
    on = forecast(FakeWorker())
    error = refusal(on, TOO_LARGE, demand())
    assert isinstance(error, TooLarge)
    for word in ("--request-timeout-seconds", "max_pixels", "--max-image-tokens", "oversize=downscale"):
        assert word in error.message
    assert refusal(on, FITS, demand()) is None


def test_what_its_caller_leaves_too_little_time_for_is_told_at_once_and_not_when_that_is_over() -> None:
    error = refusal(forecast(FakeWorker()), FITS, demand(30))
    assert isinstance(error, DeadlineExceeded) and "max_pixels" in error.message


def test_who_waits_without_a_deadline_is_refused_nothing() -> None:
    assert refusal(forecast(FakeWorker()), TOO_LARGE, demand(None)) is None


def test_before_anything_was_measured_nothing_is_refused() -> None:
    for worker in (
        FakeWorker(None, Ladder(())),
        FakeWorker(None, Ladder((TokenBudget(64, 8),))),
        FakeWorker(is_up=False),
    ):
        assert refusal(forecast(worker), 10**6, demand(0.1)) is None
    assert refusal(forecast(), 10**6, demand(0.1)) is None


def test_on_a_gpu_the_measured_ladder_tells() -> None:
    on = forecast(FakeWorker(least=None))
    assert isinstance(refusal(on, 20_000, demand()), TooLarge)
    assert refusal(on, 7000, demand()) is None


async def test_behind_its_callers_own_crowd_an_image_that_would_be_late_is_refused_until_that_is_over() -> None:
    on = forecast(FakeWorker())
    with on.expect(FITS, FITS, demand(caller="bulk")):
        error = refusal(on, FITS, demand(caller="bulk"))
        assert isinstance(error, Overloaded) and error.retry_after is not None and 1 <= error.retry_after <= 60
        assert "max_pixels" in error.message
        assert refusal(on, FITS, demand(caller="single")) is None, "another has its turn before the crowd"
        assert refusal(on, FITS, demand(caller="bulk", priority=1)) is None, "and so has what is more urgent"
        assert refusal(on, 100, demand(caller="bulk")) is None, "and what needs little time"
    assert refusal(on, FITS, demand(caller="bulk")) is None
    assert on.seconds_left == 0.0 and not on._waiting


async def test_two_workers_take_two_at_a_time() -> None:
    on = forecast(FakeWorker(), FakeWorker())
    with on.expect(5000, 5000, demand()), on.expect(5000, 5000, demand()):
        assert refusal(on, 5000, demand()) is None
        with on.expect(5000, 5000, demand()):
            assert isinstance(refusal(on, 5000, demand()), Overloaded)


async def test_what_a_worker_has_done_of_a_pack_is_not_waited_for() -> None:
    for seconds_ago, expected in ((0.0, Overloaded), (45.0, type(None))):
        on = forecast(FakeWorker(in_hand=[sent(FITS, seconds_ago, "bulk")]))
        with on.expect(FITS, FITS, demand(caller="bulk")):  # the one in hand
            assert type(refusal(on, 5000, demand(caller="single"))) is expected


def test_what_took_long_lately_is_expected_to_but_is_no_reason_to_call_it_too_large() -> None:
    worker = FakeWorker()
    for _ in range(3):
        worker.estimates.took(SentPack((), 5000, None, "oversize", 0.0, 10_000.0), 25.0)
    assert worker.estimates.seconds_lately(5000, 5000) == pytest.approx(30 * 2.5 * LATELY_SHARE, rel=0.02)
    on = forecast(worker)
    assert refusal(on, 5000, demand()) is None
    assert isinstance(refusal(on, 5000, demand(50)), Overloaded)


def test_what_was_given_up_would_have_taken_longer_still() -> None:
    worker = FakeWorker()
    worker.estimates.gave_up(SentPack((), 5000, None, "oversize", 0.0, 30_000.0), 59.0)
    assert worker.estimates.seconds_lately(5000, 5000) == pytest.approx(59 * UNFINISHED_FACTOR * LATELY_SHARE, rel=0.02)
    worker.estimates.gave_up(SentPack((), 5000, None, "oversize", 0.0, 30_000.0), 1.0)
    assert worker.estimates.seconds_lately(5000, 5000) > 60, "who leaves early says nothing new"


@given(st.lists(st.integers(1, 8000), max_size=8), st.integers(1, 20_000), st.floats(0.1, 60.0), st.integers(1, 4))
def test_what_could_be_in_time_is_never_refused(queued: list[int], patches: int, seconds: float, num: int) -> None:
    on = forecast(*(FakeWorker() for _ in range(num)))
    with contextlib.ExitStack() as stack:
        for one in queued:
            stack.enter_context(on.expect(one, one, demand(None)))
        error = refusal(on, patches, demand(seconds))
    alone = LEAST_SHARE * LEAST.milliseconds(patches) / 1000
    before = sum(LEAST_SHARE * LEAST.milliseconds(one) / 1000 for one in queued) / num
    if error is not None:
        assert alone + before > seconds - 1 or alone > REQUEST_SECONDS
    else:
        assert alone <= REQUEST_SECONDS and alone <= seconds
    assert math.isclose(on.seconds_left, 0.0)
