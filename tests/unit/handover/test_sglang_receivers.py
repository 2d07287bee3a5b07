"""Ranks and parts, matched in any order."""

from __future__ import annotations

import asyncio

import pytest

from foveal.errors import InvalidRequest, Overloaded
from foveal.handover.sglang import receivers
from foveal.handover.sglang.hosts import Endpoint
from foveal.handover.sglang.receivers import KEPT_SECONDS, Receivers

A, B = Endpoint("10.0.0.1", 1), Endpoint("10.0.0.1", 2)
KEY = ("", "r_local_part_0")


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


async def test_a_part_waits_for_all_of_its_ranks() -> None:
    waiting = Receivers()
    part = asyncio.create_task(waiting.of(KEY))
    await asyncio.sleep(0)
    waiting.post(KEY, 2, A)
    waiting.post(KEY, 2, A)  # said twice
    await asyncio.sleep(0)
    assert not part.done()
    waiting.post(KEY, 2, B)
    assert await part == [A, B] and len(waiting) == 0


async def test_ranks_that_came_first_are_there() -> None:
    waiting = Receivers()
    waiting.post(KEY, 1, A)
    assert await waiting.of(KEY) == [A] and len(waiting) == 0


async def test_ranks_of_others_are_not_mixed_in() -> None:
    waiting = Receivers()
    waiting.post(("other", KEY[1]), 1, B)
    waiting.post(KEY, 1, A)
    assert await waiting.of(KEY) == [A]


async def test_ranks_that_contradict_one_another_are_refused() -> None:
    waiting = Receivers()
    waiting.post(KEY, 1, A)
    for count, endpoint in ((2, B), (1, B)):
        with pytest.raises(InvalidRequest):
            waiting.post(KEY, count, endpoint)


async def test_a_part_is_taken_once() -> None:
    waiting = Receivers()
    first = asyncio.create_task(waiting.of(KEY))
    await asyncio.sleep(0)
    with pytest.raises(InvalidRequest):
        await waiting.of(KEY)
    waiting.post(KEY, 1, A)
    assert await first == [A]


async def test_a_part_whose_caller_left_is_forgotten() -> None:
    waiting = Receivers()
    part = asyncio.create_task(waiting.of(KEY))
    await asyncio.sleep(0)
    part.cancel()
    await asyncio.wait((part,))
    assert len(waiting) == 0


async def test_ranks_whose_part_never_comes_are_forgotten_in_time() -> None:
    clock = Clock()
    waiting = Receivers(clock)
    waiting.post(KEY, 1, A)
    clock.now = KEPT_SECONDS / 2
    taken = asyncio.create_task(waiting.of(("", "under way")))
    await asyncio.sleep(0)
    clock.now = KEPT_SECONDS
    waiting.post(("", "new"), 1, A)
    assert len(waiting) == 2
    clock.now = 2 * KEPT_SECONDS
    waiting.post(("", "newer"), 1, A)
    assert len(waiting) == 2  # `under way` does not expire
    waiting.post(("", "under way"), 1, B)
    assert await taken == [B]


async def test_their_number_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receivers, "MAX_POSTS", 2)
    waiting = Receivers()
    for i in range(2):
        waiting.post(("", str(i)), 1, A)
    with pytest.raises(Overloaded):
        waiting.post(("", "third"), 1, A)
    assert await waiting.of(("", "0")) == [A]
    waiting.post(("", "third"), 2, A)
    with pytest.raises(Overloaded):
        waiting.post(("", "third"), 2, B)
