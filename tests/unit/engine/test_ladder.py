"""The ladder: what its steps cost, measured or not, with and without attention, and which steps are inferred."""

from __future__ import annotations

import pytest

from foveal.engine.ladder import Attention, Ladder, inferred_budgets
from foveal.engine.packing import predicted_milliseconds
from foveal.types import TokenBudget
from tests.unit.engine.test_packing import Waiting, ladder


def test_the_time_of_a_pack_has_the_attention_of_its_own_items_instead_of_the_typical_ones() -> None:
    steps = Ladder((TokenBudget(100, 8, 5.0),), Attention(1e-5, typical_patches=200))
    typical = [Waiting(50, num_patches=200), Waiting(50, num_patches=200)]
    assert predicted_milliseconds(typical, steps.budgets[0], steps) == pytest.approx(5.0)
    one = [Waiting(100, num_patches=400)]
    assert predicted_milliseconds(one, steps.budgets[0], steps) == pytest.approx(5.0 + 1e-5 * (400**2 - 2 * 200**2))
    assert predicted_milliseconds(one, None, steps) == pytest.approx(5.0 + 1e-5 * (400**2 - 2 * 200**2))


def test_unmeasured_steps_cost_their_tokens_or_what_the_nearest_measured_one_says() -> None:
    assert ladder(64, 128).costs == (64, 128)
    assert predicted_milliseconds([Waiting(10)], None, ladder()) == 10
    partly = Ladder((TokenBudget(64, 8), TokenBudget(128, 8, 4.0), TokenBudget(1024, 8, 20.0)))
    assert partly.costs == (2.0, 4.0, 20.0)


def test_what_is_left_costs_several_runs_where_those_are_cheaper() -> None:
    steps = Ladder((TokenBudget(64, 8, 1.0), TokenBudget(128, 8, 4.0)))
    assert [steps.cover(t) for t in (0, 10, 64, 65, 128, 192)] == [0, 1, 1, 2, 2, 3]


def test_the_inferred_ladder_ascends_to_the_largest_image() -> None:
    for most in (1, 64, 100, 1024, 5000, 6144, 16_384):
        budgets = inferred_budgets(most)
        assert list(budgets) == sorted(set(budgets)) and budgets[-1] == min(most, 6144)
    assert len(inferred_budgets(16_384)) == 44
