"""The waiting queue: nothing lost, nothing twice, turns by tokens, and looks that do not grow with what waits."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foveal.engine.demand import Asker, Demand
from foveal.engine.fairness import STARVED_SECONDS, TURNS_BY_SHARE
from foveal.engine.items import Entry, Item
from foveal.engine.ladder import Ladder
from foveal.engine.packing import AGEING_SECONDS, DEADLINE_STEPS, MAX_CONSIDERED, next_pack, urgency
from foveal.engine.waiting_queue import MAX_LEAD_TOKENS, WaitingQueue
from foveal.ipc.arena import Arena
from foveal.types import GridTHW, Output, TokenBudget

BLOCK = Arena("queue", 4096).allocate(8)
LADDER = Ladder((TokenBudget(64, 4), TokenBudget(256, 4)))
ONE_BY_ONE = Ladder((TokenBudget(512, 1),))


LOOP = asyncio.new_event_loop()
"""Never runs: futures want one."""


@pytest.fixture(scope="module", autouse=True)
def _closed() -> Iterator[None]:
    yield
    LOOP.close()


def waiting(
    caller: str = "a",
    tokens: int = 64,
    arrival: float = 0.0,
    priority: int = 0,
    deadline: float | None = None,
    kind: type[Entry] = Entry,
) -> Entry:
    """An entry that one caller waits for."""
    item = Item(GridTHW(1, 2, 2 * tokens), tokens, BLOCK, BLOCK, Output("tokens", "float32"))
    return kind(item, LOOP.create_future(), arrival, Demand(Asker(caller, priority, deadline)))


def queue_of(*entries: Entry) -> WaitingQueue:
    queue = WaitingQueue()
    for entry in entries:
        queue.put(entry)
    return queue


def step(queue: WaitingQueue, now: float, ladder: Ladder = LADDER) -> list[Entry]:
    """One pack as the batcher takes it."""
    assert not queue.pop_late(now)
    candidates = queue.candidates(now)
    pack = next_pack(candidates, ladder, now, range(len(candidates)))
    taken = [] if pack is None else [candidates[i] for i in pack.members]
    if taken:
        queue.take(taken, now)
    return taken


def first_of(queue: WaitingQueue, now: float) -> Entry:
    queue.pop_late(now)
    return queue.candidates(now)[0]


entries = st.lists(
    st.builds(
        waiting,
        st.sampled_from("abcd"),
        st.integers(1, 400),
        st.floats(0, 50),
        st.integers(-2, 2),
        st.none() | st.floats(61, 70),
    ),
    max_size=40,
)


@given(entries, st.lists(st.integers(0, 39), max_size=8))
def test_each_entry_that_is_not_discarded_is_taken_once_and_the_totals_are_right(
    crowd: list[Entry], discarded: list[int]
) -> None:
    queue = queue_of(*crowd)
    gone = {crowd[i] for i in discarded if i < len(crowd)}
    for entry in gone:
        queue.discard(entry)
        queue.discard(entry)
    left = [entry for entry in crowd if entry not in gone]
    taken: list[Entry] = []
    while True:
        assert queue.num_tokens == sum(e.num_tokens for e in left if e not in taken)
        assert len(queue) == len(left) - len(taken)
        pack = step(queue, 60.0)
        if not pack:
            break
        taken += pack
    assert Counter(taken) == Counter(left)
    assert not queue._callers and not queue._levels and not len(queue._shares) and not queue._agenda


@given(entries, st.floats(50, 69))
def test_candidates_are_all_that_wait_or_the_bound_and_no_entry_twice(crowd: list[Entry], now: float) -> None:
    queue = queue_of(*crowd)
    late = queue.pop_late(now)
    assert set(late) == {entry for entry in crowd if entry.demand.is_late(now)}
    found = queue.candidates(now)
    assert len(found) == len(set(found)) and set(found) == set(crowd) - set(late)
    assert len(queue.candidates(now, most=3)) == min(3, len(found))


@given(entries.filter(bool), st.floats(50, 60.9))
def test_of_one_caller_the_most_urgent_goes_first_at_every_moment(crowd: list[Entry], now: float) -> None:
    """Deadlines come near as time passes, without anybody looking at those entries."""
    alone = [waiting("a", e.num_tokens, e.arrival, e.priority, e.deadline) for e in crowd]
    queue = queue_of(*alone)
    for moment in (now, now + 8.0):
        late = queue.pop_late(moment)
        alone = [entry for entry in alone if entry not in late]
        found = [urgency(e, e.arrival, moment) for e in queue.candidates(moment)]
        assert found == pytest.approx(sorted((urgency(e, e.arrival, moment) for e in alone), reverse=True))


def test_a_small_entry_goes_before_those_of_large_callers_that_came_earlier() -> None:
    crowd = [waiting(f"large-{i % 8}", 1600, i / 100) for i in range(80)]
    queue = queue_of(*crowd)
    for second in range(1, 30):
        small = waiting("small", 49, float(second))
        queue.put(small)
        assert step(queue, second + 0.5, ONE_BY_ONE) == [small]
        assert step(queue, second + 0.9, ONE_BY_ONE)[0].num_tokens == 1600


sizes = st.lists(st.integers(1, 500), min_size=1, max_size=4)


@given(st.lists(sizes, min_size=2, max_size=6), st.integers(1, 120))
def test_callers_who_always_wait_are_given_equal_tokens(callers: list[list[int]], rounds: int) -> None:
    """Within an entry of each, over any time; packs of one, so that no slack is given away. Nothing starves so soon."""
    queue, used, sent = WaitingQueue(), Counter[str](), Counter[str]()

    def send(name: str, now: float) -> None:
        own = callers[int(name)]
        queue.put(waiting(name, own[sent[name] % len(own)], now))
        sent[name] += 1

    names = [str(i) for i in range(len(callers))]
    for name in names * 2:
        send(name, 0.0)
    for turn in range(rounds):
        now = turn * STARVED_SECONDS / 1000
        (entry,) = step(queue, now, ONE_BY_ONE)
        used[entry.caller] += entry.num_tokens
        send(entry.caller, now)
    for a in names:
        for b in names:
            assert abs(used[a] - used[b]) <= max(callers[int(a)]) + max(callers[int(b)])


@given(st.lists(st.integers(1, 500), min_size=1, max_size=8), st.integers(1, 4), st.floats(0.2, 2.0))
@settings(deadline=None, max_examples=40)
def test_a_first_entry_waits_for_a_bounded_number_of_packs_whatever_comes(
    crowd: list[int], newcomers: int, seconds: float
) -> None:
    """Callers who were there, and new ones for ever, all with smaller images."""
    queue = queue_of(*(waiting(f"old-{i}", tokens, 0.0) for i, tokens in enumerate(crowd)))
    large = waiting("large", 511, 0.001)
    queue.put(large)
    packs, now = 0, 0.0
    while large in queue._caller_of:
        now += seconds
        packs += 1
        for i in range(newcomers):
            queue.put(waiting(f"new-{packs}-{i}", 1, now))
        step(queue, now, ONE_BY_ONE)
    assert packs <= STARVED_SECONDS / seconds + (TURNS_BY_SHARE + 1) * (len(crowd) + 1) + 1


def test_a_caller_who_was_away_has_no_credit_and_one_who_was_held_back_a_bounded_one() -> None:
    queue = queue_of(*(waiting("a", 500, i / 1000) for i in range(200)))
    for turn in range(100):
        step(queue, 1.0 + turn / 100, ONE_BY_ONE)
    for i in range(10):
        queue.put(waiting("b", 500, 2.0 + i / 1000))
    served = Counter(step(queue, 2.1, ONE_BY_ONE)[0].caller for _ in range(10))
    assert abs(served["a"] - served["b"]) <= 1
    low = queue_of(*(waiting("low", 500, 0.0) for _ in range(200)), *(waiting("new", 500, 9.0) for _ in range(99)))
    for _ in range(90):  # high priority has it all
        low.put(waiting("high", 500, 9.0, priority=100))
        step(low, 9.0, ONE_BY_ONE)
    served = Counter(step(low, 9.0, ONE_BY_ONE)[0].caller for _ in range(100))
    assert served["new"] >= (100 - 2 * MAX_LEAD_TOKENS / 500) / 2


def test_a_step_of_priority_is_worth_a_second_of_age() -> None:
    low, high = waiting("a", arrival=0.0), waiting("b", arrival=1.0, priority=3)
    queue = queue_of(low, high)
    assert first_of(queue, 1.0) is high
    late = waiting("b", arrival=5.0, priority=3)
    assert first_of(queue_of(low, late), 5.0) is low
    assert AGEING_SECONDS == 1.0


def test_a_served_callers_age_counts_from_then() -> None:
    old, other = [waiting("a", 64, 0.0), waiting("a", 64, 0.1)], waiting("b", 64, 3.0, priority=1)
    queue = queue_of(*old)
    assert step(queue, 3.0, ONE_BY_ONE) == old[:1]
    queue.put(other)
    assert first_of(queue, 3.5) is other, "or else a second entry of 3.4 seconds went first"


def test_a_near_deadline_goes_before_shares_and_a_far_one_does_not() -> None:
    small, hurried = waiting("small", 1, 9.0), waiting("large", 400, 9.0, deadline=12.0)
    queue = queue_of(small, hurried)
    assert first_of(queue, 9.5) is small
    assert first_of(queue, 11.0) is hurried
    assert not queue.pop_late(11.9) and queue.pop_late(12.0) == [hurried]


def test_a_near_deadline_takes_no_turn_from_a_share() -> None:
    """It is more urgent, and competes by its caller's share as before."""
    crowd = [waiting(f"large-{i % 4}", 1600, i / 100) for i in range(40)]
    queue = queue_of(*crowd)
    for turn in range(4):
        step(queue, 1.0 + turn / 100, ONE_BY_ONE)
    small = waiting("small", 49, 5.9, deadline=7.5)
    queue.put(small)
    assert first_of(queue, 6.0) is small


def test_an_entry_whose_first_deadline_has_passed_stays_for_those_who_have_time() -> None:
    shared, other = waiting("a", 400, 1.0, deadline=5.0), waiting("b", 1, 5.0)
    shared.demand.join(Asker("c", 0, 50.0))
    queue = queue_of(shared, other)
    assert not queue.pop_late(6.0) and urgency(shared, 1.0, 6.0) == 5 + DEADLINE_STEPS
    assert set(queue.candidates(6.0)) == {shared, other}
    assert queue.pop_late(50.0) == [shared]


def test_those_who_join_and_leave_move_an_entry_to_its_new_place() -> None:
    moved, other = waiting("a", 400), waiting("b", 64)
    queue = queue_of(moved, other)
    assert first_of(queue, 1.0) is other
    urgent = Asker("c", 5, 90.0)
    moved.demand.join(urgent)
    assert first_of(queue, 1.0) is moved
    moved.demand.leave(urgent)
    assert first_of(queue, 1.0) is other
    patient, first = Asker("d", 0, None), moved.demand
    first.join(patient)
    first.leave(next(iter(first._askers)))
    assert moved.caller == "d" and set(queue._callers) == {"b", "d"}
    assert len(queue) == 2 and queue.oldest is moved
    queue.discard(moved)
    first.join(Asker("e", 9))
    assert len(queue) == 1 and first_of(queue, 1.0) is other


def test_entries_that_are_put_back_are_the_oldest_again() -> None:
    crowd = [waiting("a", 64, float(i)) for i in range(6)]
    queue = queue_of(*crowd)
    taken = step(queue, 9.0)
    assert taken[0] is crowd[0] and queue.oldest is crowd[len(taken)]
    queue.put_back(taken)
    assert queue.oldest is crowd[0] and len(queue) == 6 and first_of(queue, 9.0) is crowd[0]
    assert queue.pop_all() == crowd and not queue.num_tokens


def test_what_was_cancelled_is_left_out_and_forgotten() -> None:
    crowd = [waiting("ab"[i % 2], 64, float(i)) for i in range(300)]
    queue = queue_of(*crowd)
    for entry in crowd[:250]:
        entry.done.cancel()
    assert set(queue.candidates(400.0)) == set(crowd[250:]) and len(queue) == 50
    for entry in crowd:
        entry.done.cancel()
    assert queue.candidates(400.0) == [] and not len(queue)


# ------------------------------------------------------------ looks

LOOKS: Counter[str] = Counter()


class Watched(Entry):
    """Counts who looks at it."""

    def __getattribute__(self, name: str) -> Any:
        if name in {"num_tokens", "num_patches", "arrival", "priority", "deadline", "caller", "is_wanted"}:
            LOOKS[name] += 1
        return super().__getattribute__(name)


def _looks(crowd: Iterable[Entry]) -> dict[str, int]:
    """Of an arrival, an arrival with a deadline that is near, one who leaves, and a pack."""
    queue, found = WaitingQueue(), {}
    for entry in crowd:
        queue.put(entry)

    def count(name: str) -> None:
        found[name] = LOOKS.total()
        LOOKS.clear()

    LOOKS.clear()
    queue.put(waiting("c3", 64, 99.0, kind=Watched))
    queue.pop_late(99.0)
    count("arrival")
    leaver = waiting("new", 64, 99.0, deadline=100.0, kind=Watched)
    queue.put(leaver)
    queue.pop_late(99.1)
    count("hurried arrival")
    queue.discard(leaver)
    count("leaving")
    leader = queue.candidates(99.2)
    pack = next_pack(leader, LADDER, 99.2, range(len(leader)))
    assert pack is not None and len(leader) <= MAX_CONSIDERED
    queue.take([leader[i] for i in pack.members], 99.2)
    count("pack")
    return found


@pytest.mark.parametrize("num_callers", [1, 7, 4000])
@pytest.mark.parametrize("spread", [0, 3])
def test_looks_do_not_grow_with_what_waits(num_callers: int, spread: int) -> None:
    """No clock: entries count who reads them."""
    rng = random.Random(1)

    def crowd(size: int) -> list[Entry]:
        return [
            waiting(f"c{i % num_callers}", rng.randint(1, 300), i / 1000, rng.randint(0, spread), 500.0 + i, Watched)
            for i in range(size)
        ]

    most = {"arrival": 40, "hurried arrival": 60, "leaving": 40, "pack": 30 * MAX_CONSIDERED}
    for size in (8, 1000, 4000):
        found = _looks(crowd(size))
        assert all(found[name] <= bound for name, bound in most.items()), (size, found)


def test_deadlines_that_come_near_and_pass_cost_each_entry_a_bounded_number_of_looks() -> None:
    crowd = [waiting(f"c{i % 7}", 64, 0.0, deadline=60.0 + i / 1000, kind=Watched) for i in range(4000)]
    queue = WaitingQueue()
    LOOKS.clear()
    for entry in crowd:
        queue.put(entry)
    late = [entry for tick in range(700) for entry in queue.pop_late(tick / 10)]
    assert late == crowd and LOOKS.total() <= 200 * len(crowd)
