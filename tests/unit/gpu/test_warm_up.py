"""Costs of budgets: measured where there is time, in proportion where there is not, never falling."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveal.gpu import warm_up
from foveal.gpu.layout import Layout, Step
from foveal.gpu.warm_up import measure, single_layout, typical_layout
from tests.unit.gpu.bench import CPU
from tests.unit.gpu.fake_tower import FREE, GEOMETRIES, MERGING

LADDER = [Step(tokens, min(tokens, 4)) for tokens in (10, 20, 40, 60, 100)]


class Clock:
    """An executable that takes so many seconds a token, and the clock that shows it."""

    def __init__(self, seconds: float, fixed: float = 0.0) -> None:
        self.now, self.seconds, self.fixed = 0.0, seconds, fixed
        self.ran: list[int] = []
        self.placed: list[Layout] = []
        self.buffers = SimpleNamespace(geometry=MERGING, place=self.placed.append)

    def run(self, step: Step) -> None:
        self.ran.append(step.tokens)
        self.now += self.fixed + self.seconds * step.tokens

    def perf_counter(self) -> float:
        return self.now


def measured(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    monkeypatch.setattr(warm_up.time, "perf_counter", clock.perf_counter)
    budgets = measure(clock, LADDER, CPU)  # type: ignore[arg-type]
    assert [(b.tokens, b.items) for b in budgets] == LADDER
    return [b.milliseconds for b in budgets]


def test_a_cpu_measures_three_steps_and_interpolates_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(0.0001, fixed=0.001)
    assert measured(clock, monkeypatch) == pytest.approx([2, 3, 5, 7, 11])
    assert clock.ran == [10, 10, 10, 10, 10, 40, 100]


def test_a_slow_model_is_estimated_in_proportion(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(0.1)
    assert measured(clock, monkeypatch) == pytest.approx([1000, 2000, 4000, 6000, 10000])
    assert clock.ran == [10, 10]


def test_a_hiccup_of_the_first_runs_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(0.0001)
    run = clock.run

    def stumbling(step: Step) -> None:
        clock.now += 0.03 if len(clock.ran) < 3 else 0.0
        run(step)

    monkeypatch.setattr(clock, "run", stumbling)
    assert measured(clock, monkeypatch) == pytest.approx([1, 2, 4, 6, 10])


def test_costs_never_fall_with_size(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(-0.00001, fixed=0.01)
    milliseconds = measured(clock, monkeypatch)
    assert milliseconds == sorted(milliseconds)


def test_every_row_is_in_use_while_a_step_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(0.0001)
    monkeypatch.setattr(warm_up, "TYPICAL_TOKENS", 7)
    measured(clock, monkeypatch)
    assert [layout.num_tokens for layout in clock.placed] == [10, 40, 100]
    assert [layout.num_items for layout in clock.placed] == [2, 4, 4]


@given(
    st.sampled_from(sorted(GEOMETRIES)), st.integers(1, 3000), st.integers(1, 64), st.sampled_from(["usual", "single"])
)
def test_pictures_to_measure_with_fit_their_step(name: str, tokens: int, items: int, kind: str) -> None:
    geometry, step = GEOMETRIES[name], Step(tokens, min(tokens, items))
    layout = (typical_layout if kind == "usual" else single_layout)(step, geometry)
    assert layout.num_items <= step.items and layout.num_tokens <= tokens
    if geometry.fixed_grid:
        assert set(layout.grids) <= {geometry.fixed_grid}
        assert layout.num_items == min(step.items, tokens // 14)
    elif tokens > geometry.prefix_rows:
        assert layout.num_tokens == tokens
        assert kind == "usual" or layout.num_items == 1


def test_pictures_to_measure_with_are_as_near_to_squares_as_can_be() -> None:
    assert typical_layout(Step(512, 4), MERGING).grids == ((32, 32), (32, 32))
    assert single_layout(Step(48, 4), MERGING).grids == ((12, 16),)
    assert single_layout(Step(49, 4), FREE).grids == ((1, 47),)
