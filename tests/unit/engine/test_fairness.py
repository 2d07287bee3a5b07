"""Turns: a crowd delays others by a bounded number of packs, and nothing is lost or starved."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hypothesis import given
from hypothesis import strategies as st

from foveal.engine.fairness import TurnQueue, fair_order
from foveal.engine.ladder import Ladder
from foveal.engine.packing import next_pack
from foveal.types import TokenBudget

LADDER = Ladder((TokenBudget(64, 4), TokenBudget(256, 4)))


@dataclass(frozen=True)
class Waiting:
    caller: str
    num_tokens: int = 64
    arrival: float = 0.0
    turn: float = 0.0
    priority: int = 0
    deadline: float | None = None
    max_company: int = 1 << 30
    num_patches: int = 0


callers = st.sampled_from(["a", "b", "c", "d"])
crowds = st.lists(
    st.builds(Waiting, callers, st.integers(1, 400), st.floats(0, 50), st.just(0.0), st.integers(-2, 2)), max_size=40
)


def step(queue: list[Waiting], now: float) -> tuple[list[Waiting], list[Waiting]]:
    """One pack as the batcher takes it: who was served has a new turn. Returns (taken, left)."""
    pack = next_pack(queue, LADDER, now, fair_order(queue, now))
    assert pack is not None
    taken = [queue[i] for i in pack.members]
    served = {entry.caller for entry in taken}
    rest = [entry for i, entry in enumerate(queue) if i not in set(pack.members)]
    return taken, [replace(entry, turn=now) if entry.caller in served else entry for entry in rest]


@given(crowds)
def test_an_order_has_each_place_once_and_one_of_each_caller_first(queue: list[Waiting]) -> None:
    order = fair_order(queue, 60.0)
    assert sorted(order) == list(range(len(queue)))
    heads = {queue[i].caller for i in order[: len({entry.caller for entry in queue})]}
    assert heads == {entry.caller for entry in queue}


@given(st.lists(st.integers(1, 30), max_size=6), st.lists(st.integers(1, 400), min_size=1, max_size=8))
def test_a_single_image_waits_for_one_pack_of_each_other_caller(crowd: list[int], sizes: list[int]) -> None:
    """Others keep as many images waiting as they like, of any size, and were all there before."""
    queue = [
        Waiting(f"bulk-{c}", sizes[(c + i) % len(sizes)], arrival=i / 1000)
        for c, count in enumerate(crowd)
        for i in range(count)
    ]
    queue.append(Waiting("interactive", arrival=1.0))
    packs, now = 0, 1.0
    while any(entry.caller == "interactive" for entry in queue):
        now += 0.1
        taken, queue = step(queue, now)
        packs += 1
        queue += [Waiting(entry.caller, entry.num_tokens, arrival=now) for entry in taken]  # the crowd never ends
        queue = [entry for entry in queue if entry.caller != "interactive" or entry.arrival == 1.0]
        if any(entry.caller == "interactive" for entry in taken):
            break
    assert packs <= len(crowd) + 1


@given(crowds)
def test_everyone_is_served_in_the_end(queue: list[Waiting]) -> None:
    now = 60.0
    for _ in range(len(queue)):
        if queue:
            now += 0.1
            _, queue = step(queue, now)
    assert not queue


def test_within_one_caller_the_older_goes_first_and_priority_before_that() -> None:
    queue = [Waiting("a", arrival=2.0), Waiting("a", arrival=1.0), Waiting("a", arrival=2.0, priority=5)]
    assert fair_order(queue, 3.0) == [2, 1, 0]


def test_a_lead_in_priority_beats_a_turn_until_age_outweighs_it() -> None:
    low, high = Waiting("a", arrival=0.0), Waiting("b", arrival=1.0, priority=3, turn=1.0)
    assert fair_order([low, high], 1.0) == [1, 0]
    assert fair_order([low, replace(high, arrival=5.0, turn=5.0)], 5.0) == [0, 1]


def test_tasks_alternate_between_callers() -> None:
    queue: TurnQueue[str] = TurnQueue()
    for task in ("a1", "a2", "a3", "b1"):
        queue.put(task[0], task)
    queue.discard("a", "a2")
    queue.discard("c", "c1")
    assert queue.all() == ["a1", "a3", "b1"] and len(queue) == 3
    assert [queue.take() for _ in range(4)] == ["a1", "b1", "a3", None]
