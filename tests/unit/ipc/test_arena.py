"""Arenas: what is taken never overlaps, what nobody holds is free, in any order of events."""

from __future__ import annotations

import gc
import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveal.ipc.arena import Arena, ArenaFull, FreeList, MappedArena
from foveal.ipc.messages import Span


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 40)), max_size=60))
def test_taken_stretches_never_overlap_and_come_back_whole(steps: list[tuple[bool, int]]) -> None:
    free = FreeList(100)
    taken: list[tuple[int, int]] = []
    for takes, number in steps:
        if takes:
            try:
                offset = free.take(number)
            except ArenaFull:
                assert sum(length for _, length in taken) + number > 100 or taken
                continue
            assert offset >= 0 and offset + number <= 100
            assert all(offset + number <= o or o + n <= offset for o, n in taken)
            taken.append((offset, number))
        elif taken:
            free.give_back(*taken.pop(number % len(taken)))
        assert free.used == sum(length for _, length in taken)
    for stretch in taken:
        free.give_back(*stretch)
    assert free.take(100) == 0


def test_giving_back_twice_is_noticed() -> None:
    free = FreeList(64)
    offset = free.take(32)
    free.give_back(offset, 32)
    with pytest.raises(AssertionError, match="freed again"):
        free.give_back(offset, 32)


def test_a_block_lives_as_long_as_any_view_of_it() -> None:
    arena = Arena("test", 4096)
    block = arena.allocate(100)
    slice_of_view, raw = block.view[10:20], block.view[3:].data
    del block
    assert arena.used == 128
    del slice_of_view
    assert arena.used == 128
    del raw
    assert arena.used == 0


def test_a_release_inside_an_allocation_is_safe() -> None:
    arena = Arena("test", 1 << 16)
    for _ in range(200):  # blocks in reference cycles come back whenever the collector runs
        cycle = [arena.allocate(64)]
        cycle.append(cycle)  # type: ignore[arg-type]
        del cycle
        if arena.used > 1 << 14:
            gc.collect()
    gc.collect()
    assert arena.used == 0
    assert arena.allocate(1 << 16).span == Span(0, 1 << 16)


def test_a_full_arena_refuses_and_recovers() -> None:
    arena = Arena("test", 1024)
    block = arena.allocate(1000)
    with pytest.raises(ArenaFull):
        arena.allocate(64)
    del block
    assert arena.allocate(1024).span.offset == 0


def test_both_sides_see_the_same_bytes_and_none_beyond() -> None:
    arena = Arena("test", 4096)
    block = arena.allocate(5)
    child = MappedArena(arena.fd)
    child.view(block.span)[:] = 7
    assert bytes(block.view) == b"\x07" * 5
    for span in (Span(4090, 10), Span(-1, 4), Span(0, -1)):
        with pytest.raises(ValueError, match="outside"):
            child.view(span)


def test_a_view_that_its_owner_keeps_does_not_keep_an_arena_for_ever() -> None:
    class Owner:
        def __init__(self) -> None:
            self.arena = Arena("test", 4096)
            self.arena.on_release(self.nothing)
            self.kept = self.arena.allocate(10)

        def nothing(self) -> None: ...

    gone = weakref.ref(Owner().arena)
    gc.collect()
    assert gone() is None
