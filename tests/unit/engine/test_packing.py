"""Packing: nothing lost, nothing twice, no capacity exceeded, nobody starved, and cheap budgets chosen."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from foveal.engine.ladder import inferred_budgets
from foveal.engine.packing import Ladder, next_pack
from foveal.types import TokenBudget


@dataclass(frozen=True)
class Waiting:
    num_tokens: int
    arrival: float = 0.0
    priority: int = 0
    max_company: int = 1 << 30


def ladder(*tokens: int, items: int = 8, milliseconds: float = 0.0) -> Ladder:
    return Ladder(tuple(TokenBudget(t, min(t, items), milliseconds * t) for t in tokens))


entries = st.lists(
    st.builds(
        Waiting,
        st.integers(1, 300),
        st.floats(0, 100),
        st.integers(-5, 5),
        st.sampled_from([1, 2, 1 << 30]),
    ),
    max_size=40,
)
ladders = st.lists(st.integers(1, 256), max_size=6, unique=True).map(lambda ts: ladder(*sorted(ts)))


@given(entries, ladders)
def test_repeated_packing_takes_each_entry_once_and_keeps_every_capacity(queue: list[Waiting], steps: Ladder) -> None:
    left, rounds = list(queue), 0
    while (pack := next_pack(left, steps, now=100.0)) is not None:
        rounds += 1
        members = [left[i] for i in pack.members]
        assert members and len(set(pack.members)) == len(members)
        assert pack.num_tokens == sum(m.num_tokens for m in members)
        assert len(members) <= min(m.max_company for m in members)
        if pack.budget is None:
            assert len(members) == 1 and pack.reason and members[0].num_tokens > steps.max_tokens
        else:
            assert pack.num_tokens <= pack.budget.tokens and len(members) <= pack.budget.items
            assert steps.smallest_for(pack.num_tokens, len(members)) == pack.budget
        left = [e for i, e in enumerate(left) if i not in set(pack.members)]
    assert not left and rounds <= len(queue)


@given(entries.filter(bool), ladders)
def test_the_most_urgent_entry_is_always_in_the_next_pack(queue: list[Waiting], steps: Ladder) -> None:
    pack = next_pack(queue, steps, now=100.0)
    assert pack is not None
    best = max(e.priority + (100.0 - e.arrival) for e in queue)
    assert any(queue[i].priority + (100.0 - queue[i].arrival) == best for i in pack.members)


def test_nothing_waiting_is_no_pack() -> None:
    assert next_pack([], ladder(64), 0.0) is None


def test_small_ones_behind_a_big_one_fill_its_slack() -> None:
    queue = [Waiting(200, arrival=0.0), Waiting(100, arrival=1.0), Waiting(50, arrival=2.0)]
    pack = next_pack(queue, ladder(256), now=3.0)
    assert pack is not None and set(pack.members) == {0, 2}


def test_a_big_one_overtaken_by_small_ones_goes_first_once_it_is_oldest() -> None:
    queue = [Waiting(10, arrival=5.0) for _ in range(50)] + [Waiting(256, arrival=0.0)]
    pack = next_pack(queue, ladder(64, 256), now=6.0)
    assert pack is not None and pack.members == (50,)


def test_age_outweighs_priority_in_the_end() -> None:
    queue = [Waiting(64, arrival=0.0, priority=0), Waiting(64, arrival=99.0, priority=50)]
    pack = next_pack(queue, ladder(64), now=100.0)
    assert pack is not None and pack.members == (0,)


def test_the_budget_with_the_least_time_per_token_wins() -> None:
    steps = Ladder((TokenBudget(64, 8, milliseconds=1.0), TokenBudget(128, 8, milliseconds=4.0)))
    pack = next_pack([Waiting(60), Waiting(60)], steps, now=0.0)
    assert pack is not None and pack.budget is not None and pack.budget.tokens == 64


def test_the_inferred_ladder_ascends_to_the_largest_image() -> None:
    for most in (1, 64, 100, 1024, 5000, 8192, 16_384):
        budgets = inferred_budgets(most)
        assert list(budgets) == sorted(set(budgets)) and budgets[-1] == min(most, 8192)
    assert len(inferred_budgets(16_384)) == 40
