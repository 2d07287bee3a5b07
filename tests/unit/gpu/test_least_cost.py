"""The least cost on a CPU: of one thread's own time, so that a busy machine does not make it look dear."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from foveal.families.catalogue import local_spec
from foveal.gpu import least_cost as module
from foveal.gpu.least_cost import least_cost

PLAN = local_spec("builtin:tiny", dummy_weights=True).tower


class Clock:
    """Takes so many seconds each time that it is looked at."""

    def __init__(self, seconds: float) -> None:
        self.now, self.seconds = 0.0, seconds

    def thread_time(self) -> float:
        self.now += self.seconds
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock(0.5)
    monkeypatch.setattr(module.time, "thread_time", clock.thread_time)
    return clock


def test_attention_costs_by_the_square_and_in_every_block_that_sees_the_whole_picture(clock: Clock) -> None:
    cost = least_cost(PLAN, torch.float32)
    assert cost.milliseconds(2000) > 2 * cost.milliseconds(1000)
    deeper = least_cost(replace(PLAN, depth=2 * PLAN.depth), torch.float32)
    assert deeper.ms_per_patch2 == pytest.approx(2 * cost.ms_per_patch2)
    some = replace(PLAN, depth=8, positions=replace(PLAN.positions, window=4, full_blocks=(3, 7)))
    assert least_cost(some, torch.float32).ms_per_patch2 == pytest.approx(cost.ms_per_patch2 * 2 / PLAN.depth)


def test_pictures_of_one_size_have_no_attention_that_could_grow(clock: Clock) -> None:
    assert least_cost(replace(PLAN, fixed_grid=(8, 8)), torch.float32).ms_per_patch2 == 0


def test_threads_are_taken_to_help_each_other_without_loss_and_are_there_again_afterwards(clock: Clock) -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = least_cost(PLAN, torch.float32)
        torch.set_num_threads(2)
        two = least_cost(PLAN, torch.float32)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert two.milliseconds(1000) == pytest.approx(one.milliseconds(1000) / 2)
