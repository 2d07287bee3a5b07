"""Packing: nothing lost, nothing twice, no capacity exceeded, nobody starved, and cheap budgets chosen."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from foveal.engine.filling import Pack
from foveal.engine.ladder import Attention, Ladder
from foveal.engine.packing import (
    AGEING_SECONDS,
    DEADLINE_STEPS,
    least_finish,
    next_pack,
)
from foveal.types import TokenBudget


@dataclass(frozen=True)
class Waiting:
    num_tokens: int
    arrival: float = 0.0
    priority: int = 0
    max_company: int = 1 << 30
    num_patches: int = 0
    deadline: float | None = None


def ladder(*tokens: int, items: int = 8, milliseconds: float = 0.0) -> Ladder:
    return Ladder(tuple(TokenBudget(t, min(t, items), milliseconds * t) for t in tokens))


entries = st.lists(
    st.builds(
        Waiting,
        st.integers(1, 300),
        st.floats(0, 100),
        st.integers(-5, 5),
        st.sampled_from([1, 2, 1 << 30]),
        st.integers(1, 1200),
        st.none() | st.floats(100, 110),
    ),
    max_size=40,
)
ladders = st.lists(st.integers(1, 256), max_size=6, unique=True).map(lambda ts: ladder(*sorted(ts)))
steps_of_any_cost = st.builds(TokenBudget, st.integers(1, 256), st.integers(1, 9), st.floats(0, 50))
measured = st.builds(
    lambda steps, share, typical: Ladder(
        tuple(sorted(steps, key=lambda b: b.tokens)), Attention(share, typical, merge_area=4)
    ),
    st.lists(steps_of_any_cost, max_size=6, unique_by=lambda b: b.tokens),
    st.sampled_from([0.0, 1e-6, 1e-3]),
    st.integers(0, 300),
)


@given(entries, ladders)
def test_repeated_packing_takes_each_entry_once_and_keeps_every_capacity(queue: list[Waiting], steps: Ladder) -> None:
    _pack_all(queue, steps)


@given(entries, measured)
def test_the_same_holds_whatever_was_measured(queue: list[Waiting], steps: Ladder) -> None:
    _pack_all(queue, steps)


def _pack_all(queue: list[Waiting], steps: Ladder) -> None:
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
            assert steps.is_measured or steps.smallest_for(pack.num_tokens, len(members)) == pack.budget
        left = [e for i, e in enumerate(left) if i not in set(pack.members)]
    assert not left and rounds <= len(queue)


@given(entries.filter(bool), ladders)
def test_the_most_urgent_entry_is_always_in_the_next_pack(queue: list[Waiting], steps: Ladder) -> None:
    pack = next_pack(queue, steps, now=100.0)
    assert pack is not None
    best = max(_urgency(e) for e in queue)
    assert any(_urgency(queue[i]) == best for i in pack.members)


def _urgency(e: Waiting, now: float = 100.0) -> float:
    near = 0.0 if e.deadline is None else max(0.0, 1 - (e.deadline - now) / 2)
    return e.priority + (now - e.arrival) + 4 * near


arrivals = st.tuples(st.integers(1, 300), st.integers(-2, 2), st.none() | st.floats(0, 3), st.floats(0, 1))


@given(st.lists(st.lists(arrivals, max_size=4), min_size=1, max_size=12), ladders, st.floats(0.01, 1))
def test_waiting_is_bounded_by_those_who_may_go_first(
    rounds: list[list[tuple[int, int, float | None, float]]], steps: Ladder, seconds: float
) -> None:
    """One pack starts in each round, while others keep arriving."""
    everyone: list[Waiting] = []
    queue: list[Waiting] = []
    overtaken: dict[int, int] = {}
    now = 0.0
    while queue or rounds:
        for tokens, priority, deadline, late in rounds.pop(0) if rounds else ():
            arrival = now + late * seconds
            queue.append(Waiting(tokens, arrival, priority, deadline=None if deadline is None else arrival + deadline))
            everyone.append(queue[-1])
        now += seconds
        if (pack := next_pack(queue, steps, now)) is not None:
            taken = set(pack.members)
            queue = [e for i, e in enumerate(queue) if i not in taken]
            for e in queue:
                overtaken[id(e)] = overtaken.get(id(e), 0) + 1
    for e in everyone:
        leads = [(o.priority - e.priority + DEADLINE_STEPS) * AGEING_SECONDS for o in everyone if o is not e]
        others = [o.arrival for o in everyone if o is not e]
        may_go_first = sum(o <= e.arrival + lead + 1e-9 for o, lead in zip(others, leads, strict=True))
        assert overtaken.get(id(e), 0) <= may_go_first


@given(st.lists(st.integers(1, 300), min_size=1, max_size=7), measured.filter(lambda s: s.max_tokens > 0))
def test_no_other_filling_with_the_most_urgent_is_expected_to_cost_less(sizes: list[int], steps: Ladder) -> None:
    steps = Ladder(tuple(TokenBudget(b.tokens, 8, b.milliseconds) for b in steps.budgets), steps.attention)
    queue = [Waiting(tokens, arrival=float(i)) for i, tokens in enumerate(sizes)]
    pack = next_pack(queue, steps, now=50.0)
    assert pack is not None
    if pack.budget is None:
        return
    fitting = [tokens for tokens in sizes if tokens <= steps.max_tokens]
    rate = steps.rate_for(sum(fitting) / len(fitting))

    def cost(tokens: int, k: int) -> float:
        rest = sum(fitting) - tokens
        return steps.costs[k] + max(steps.cover(rest), rest * rate)

    sums = {sizes[0] + sum(c) for n in range(len(sizes)) for c in combinations(sizes[1:], n)}
    best = min(cost(s, steps.cheapest_for(s, 1)) for s in sums if s <= steps.max_tokens)
    assert cost(pack.num_tokens, steps.budgets.index(pack.budget)) <= best * 1.01 + 1e-9


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


def budgets_of(*tokens: int) -> Ladder:
    """Half a millisecond a run and a hundredth a token."""
    return Ladder(tuple(TokenBudget(t, 64, 0.5 + 0.01 * t) for t in tokens))


def packed(queue: list[Waiting], steps: Ladder, now: float = 10.0) -> Pack:
    pack = next_pack(queue, steps, now)
    assert pack is not None
    return pack


def test_a_small_urgent_one_is_not_promoted_into_a_much_larger_budget() -> None:
    queue = [Waiting(64, arrival=0.0), Waiting(4090, arrival=1.0)]
    assert packed(queue, budgets_of(64, 4096, 8192)).members == (0,)


def test_all_go_in_one_run_when_that_saves_runs() -> None:
    queue = [Waiting(60, arrival=0.0), Waiting(60, arrival=1.0), Waiting(60, arrival=2.0)]
    assert sorted(packed(queue, budgets_of(64, 128, 192, 256)).members) == [0, 1, 2]


def test_a_budget_is_filled_exactly_when_those_who_wait_allow_it() -> None:
    queue = [Waiting(t, arrival=float(i)) for i, t in enumerate((700, 900, 500, 300, 250, 74, 650))]
    pack = packed(queue, budgets_of(1024))
    assert pack.num_tokens == 1024 and 0 in pack.members


def test_of_equal_fillings_the_more_urgent_entries_go() -> None:
    queue = [Waiting(100, arrival=float(i)) for i in range(6)]
    assert sorted(packed(queue, budgets_of(300)).members) == [0, 1, 2]


def test_a_larger_budget_that_is_faster_is_taken_and_noise_is_not_faster() -> None:
    faster = Ladder((TokenBudget(64, 8, 2.0), TokenBudget(128, 8, 1.5)))
    noise = Ladder((TokenBudget(64, 8, 2.0), TokenBudget(128, 8, 1.99)))
    assert packed([Waiting(50)], faster).budget == faster.budgets[1]
    assert packed([Waiting(50)], noise).budget == noise.budgets[0]


def test_a_near_deadline_goes_before_older_ones() -> None:
    queue = [Waiting(64, arrival=8.0), Waiting(64, arrival=9.0, deadline=10.1), Waiting(64, arrival=9.0, deadline=60.0)]
    assert packed(queue, budgets_of(64)).members == (1,)


def test_the_worker_that_ends_first_takes_the_pack_and_ties_rotate() -> None:
    assert least_finish([5.0, 1.0, 3.0], [1.0, 9.0, 1.0], 0) == 2
    assert [least_finish([1.0, 9.0, 1.01], [1.0, 1.0, 1.0], turn) for turn in range(3)] == [0, 2, 0]


def on_a_cpu(overhead: float) -> Ladder:
    """A tenth of a millisecond a token, and attention that makes an image of 1,600 tokens take 0.59 s."""
    steps = tuple(TokenBudget(t, 64, overhead + 0.1 * t) for t in (64, 128, 512, 1664, 2048, 4096))
    return Ladder(steps, Attention(1.05e-5, typical_patches=0))


def test_a_small_one_does_not_ride_with_a_large_one_that_saves_nothing_by_it() -> None:
    large = Waiting(1600, arrival=1.0, num_patches=6400)
    queue = [Waiting(30, arrival=0.0, num_patches=120), large, Waiting(31, arrival=1.5, num_patches=124)]
    assert sorted(packed(queue, on_a_cpu(overhead=1.0)).members) == [0, 2]
    assert sorted(packed([large, large, *queue[2:]], on_a_cpu(overhead=1.0)).members) == [0, 2], "slack costs nothing"


def test_a_long_pack_is_made_where_that_saves_time() -> None:
    queue = [Waiting(900, arrival=float(i)) for i in range(4)]
    assert len(packed(queue, on_a_cpu(overhead=200.0)).members) > 1
