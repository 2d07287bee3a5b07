"""The ladder: what its steps cost, measured or not, with and without attention, and which steps are inferred."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveal.engine.ladder import MAX_BUDGET_TOKENS, Attention, Ladder, inferred_budgets
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
    for most in (1, 64, 100, 1024, 5000, 5120, 16_384):
        budgets = inferred_budgets(most)
        assert list(budgets) == sorted(set(budgets)) and budgets[-1] == min(most, 5120)
    assert len(inferred_budgets(16_384)) == 42


def test_budgets_of_images_of_one_size_are_multiples_of_it() -> None:
    counts = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16)
    assert inferred_budgets(16_384, 257) == tuple(257 * count for count in counts)
    assert [b // 50 for b in inferred_budgets(16_384, 50)] == [*counts, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96]
    assert inferred_budgets(16_384, 5329) == (5329,)


@given(st.integers(1, 6000))
def test_an_image_of_one_size_always_has_a_budget_and_none_is_beyond_the_largest(tokens: int) -> None:
    budgets = inferred_budgets(16_384, tokens)
    assert budgets[0] == tokens and list(budgets) == sorted(set(budgets))
    assert all(b % tokens == 0 for b in budgets) and max(budgets) <= max(tokens, MAX_BUDGET_TOKENS)


def test_where_nothing_is_merged_a_token_is_a_patch() -> None:
    assert Attention(1e-5, typical_patches=200, merge_area=1).measured(400) == pytest.approx(1e-5 * 400 * 200)
