"""Fair shares of cost: equal use over any time in which callers wait, no credit for idling, nobody starved."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveal.engine.fairness import STARVED_SECONDS, FairShares, TurnQueue

LEAD = 1000.0
costs = st.lists(st.integers(1, 100), min_size=1, max_size=5)
puts = st.lists(st.tuples(st.sampled_from("abcd"), st.integers(1, 50)), max_size=40)


def named(*tasks: str, cost: float = 1.0) -> TurnQueue[str]:
    """A queue of tasks that begin with their caller's name."""
    queue: TurnQueue[str] = TurnQueue(LEAD)
    for task in tasks:
        queue.put(task[0], task, cost)
    return queue


def test_tasks_of_equal_cost_alternate_between_callers() -> None:
    queue = named("a1", "a2", "a3", "b1")
    queue.discard("a", "a2")
    queue.discard("c", "c1")
    assert queue.all() == ["a1", "a3", "b1"] and len(queue) == 3
    assert [queue.take() for _ in range(4)] == ["a1", "b1", "a3", None]


def test_a_small_task_goes_before_all_large_ones_that_wait() -> None:
    queue = named("a1", "a2", "b1", "b2", cost=64.0)
    assert queue.take() == "a1"
    queue.put("s", "s1", 1.0)
    assert queue.take() == "s1"
    queue.put("s", "s2", 1.0)
    assert queue.take() == "s2", "two small ones are less than one large one"


def test_a_task_that_is_put_back_goes_first_of_its_callers_and_is_paid_for_again() -> None:
    queue = named("a1", "a2", "b1")
    assert queue.take() == "a1"
    queue.put_back("a", "a1")
    assert [queue.take() for _ in range(4)] == ["b1", "a1", "a2", None]


@given(puts, st.lists(st.integers(0, 39), max_size=10))
def test_each_task_that_is_not_discarded_comes_once_in_the_order_of_its_callers(
    tasks: list[tuple[str, int]], discarded: list[int]
) -> None:
    queue: TurnQueue[tuple[str, int]] = TurnQueue(LEAD)
    for number, (caller, cost) in enumerate(tasks):
        queue.put(caller, (caller, number), cost)
    for number in discarded:
        if number < len(tasks):
            queue.discard(tasks[number][0], (tasks[number][0], number))
    left = [(caller, i) for i, (caller, _) in enumerate(tasks) if i not in discarded]
    assert len(queue) == len(left)
    taken = [task for _ in left if (task := queue.take()) is not None]
    assert sorted(taken) == sorted(left) and queue.take() is None and len(queue) == 0
    for caller in "abcd":
        assert [t for t in taken if t[0] == caller] == [t for t in left if t[0] == caller]


@given(st.lists(costs, min_size=2, max_size=6), st.integers(1, 300))
def test_callers_who_always_wait_use_the_same_within_a_task_of_each(sizes: list[list[int]], rounds: int) -> None:
    queue: TurnQueue[tuple[int, int]] = TurnQueue(LEAD)
    sent: Counter[int] = Counter()

    def send(caller: int) -> None:
        cost = sizes[caller][sent[caller] % len(sizes[caller])]
        queue.put(str(caller), (caller, sent[caller]), cost)
        sent[caller] += 1

    for caller in range(len(sizes)):
        send(caller)
        send(caller)
    used: Counter[int] = Counter()
    for _ in range(rounds):
        task = queue.take()
        assert task is not None
        caller, number = task
        used[caller] += sizes[caller][number % len(sizes[caller])]
        send(caller)
    for a in range(len(sizes)):
        for b in range(len(sizes)):
            assert abs(used[a] - used[b]) <= max(sizes[a]) + max(sizes[b])


@given(st.integers(1, 100), st.integers(2, 6), st.integers(0, 50))
def test_idling_saves_nothing_up(cost: int, crowd: int, rounds: int) -> None:
    """Who comes after any number of rounds has no more of the next ones than those who were there."""
    queue: TurnQueue[tuple[str, int]] = TurnQueue(LEAD)
    numbers = iter(range(10_000))
    for _ in range(2):
        for caller in range(crowd):
            queue.put(str(caller), (str(caller), next(numbers)), cost)
    for _ in range(rounds):
        task = queue.take()
        assert task is not None
        queue.put(task[0], (task[0], next(numbers)), cost)
    for _ in range(10):
        queue.put("new", ("new", next(numbers)), cost)
    taken = [task[0] for _ in range(2 * (crowd + 1)) if (task := queue.take()) is not None]
    assert 1 <= taken.count("new") <= 3


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 100)), max_size=100))
def test_nobody_is_remembered_once_nothing_waits(tasks: list[tuple[int, int]]) -> None:
    queue: TurnQueue[int] = TurnQueue(LEAD)
    for number, (caller, cost) in enumerate(tasks):
        queue.put(str(caller), number, cost)
        if number % 3 == 2:
            queue.take()
    while queue.take() is not None:
        pass
    assert len(queue._shares) == 0


def test_newcomers_without_end_do_not_starve_a_large_task() -> None:
    """Twice as many come as can be served, one task in each tenth of a second."""
    now = 0.0
    queue: TurnQueue[str] = TurnQueue(LEAD, lambda: now)
    queue.put("large", "large", 500.0)
    for number in range(2000):
        queue.put(f"n{number}", f"n{number}", 1.0)
        queue.put(f"m{number}", f"m{number}", 1.0)
        if queue.take() == "large":
            break
        now += 0.1
    assert STARVED_SECONDS <= now <= STARVED_SECONDS + 1.0


@pytest.mark.parametrize("use", [1e6, 1e9])
def test_use_far_beyond_a_share_is_not_paid_for_for_ever(use: float) -> None:
    """Nor is a share that was not used remembered for ever: both within the lead and one piece of work."""
    shares = FairShares(LEAD)
    shares.join("greedy")
    shares.join("starved")
    for _ in range(10):
        shares.charge({"greedy": use / 10})
    assert shares.account("greedy") - shares.virtual_time <= max(LEAD, use / 10)
    shares.charge({"starved": 1.0})
    assert shares.account("starved") >= shares.virtual_time - LEAD
