"""The encoder cache is bounded in bytes; flights share one encode and outlive their first caller."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from foveal.engine.cache import EncoderCache, Flights
from foveal.engine.demand import Asker, Demand
from foveal.engine.items import Encoded
from foveal.engine.memory import Allocator
from foveal.errors import Undecodable
from foveal.ipc.arena import Arena
from foveal.metrics import Metrics
from foveal.types import GridTHW, Output


def encoded(size: int, arena: Arena | None = None) -> Encoded:
    block = (arena or Arena("test", 4096)).allocate(size)
    return Encoded(block, (size,), Output("pooled", "float32"), GridTHW(1, 2, 2), 1, (1, 1), "", "")


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 150)), max_size=40))
def test_the_cache_never_holds_more_than_its_bytes(puts: list[tuple[int, int]]) -> None:
    cache, arena = EncoderCache(200, Metrics(CollectorRegistry())), Arena("test", 4096)
    for name, size in puts:
        cache.put((name,), encoded(size, arena))
        assert cache.shown()["bytes"] <= 200
        found = cache.get((name,))
        assert found is not None and found.num_bytes == size
        del found
    while cache.evict():
        pass
    assert arena.used == 0 and cache.shown()["bytes"] == 0


def test_what_could_never_fit_does_not_empty_the_cache() -> None:
    cache = EncoderCache(200, Metrics(CollectorRegistry()))
    cache.put(("small",), encoded(100))
    cache.put(("huge",), encoded(201))
    assert cache.get(("small",)) is not None and cache.get(("huge",)) is None


def test_the_least_recently_used_leaves_first() -> None:
    cache = EncoderCache(300, Metrics(CollectorRegistry()))
    for name in "abc":
        cache.put((name,), encoded(100))
    cache.get(("a",))
    cache.put(("d",), encoded(100))
    assert cache.get(("b",)) is None and cache.get(("a",)) is not None


async def test_a_caller_who_leaves_does_not_stop_the_others() -> None:
    flights: Flights[int] = Flights()
    gate, starts = asyncio.Event(), []

    async def work(demand: Demand) -> int:
        starts.append(1)
        await gate.wait()
        return 7

    first, second = (asyncio.create_task(flights.join(("k",), Asker(), work)) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.sleep(0)
    gate.set()
    assert await second == 7 and len(starts) == 1
    assert ("k",) not in flights


async def test_the_last_caller_to_leave_stops_the_flight_and_the_next_starts_anew() -> None:
    flights: Flights[int] = Flights()
    stopped = asyncio.Event()

    async def endless(demand: Demand) -> int:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()
        return 0

    async def quick(demand: Demand) -> int:
        return 1

    caller = asyncio.create_task(flights.join(("k",), Asker(), endless))
    await asyncio.sleep(0)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert await flights.join(("k",), Asker(), quick) == 1
    assert stopped.is_set()


async def test_an_error_reaches_every_caller_and_is_not_kept() -> None:
    flights: Flights[int] = Flights()

    async def fails(demand: Demand) -> int:
        await asyncio.sleep(0)
        raise Undecodable("damaged")

    results = await asyncio.gather(*(flights.join(("k",), Asker(), fails) for _ in range(3)), return_exceptions=True)
    assert all(isinstance(result, Undecodable) for result in results)
    assert ("k",) not in flights


async def test_waiters_for_memory_are_served_in_order() -> None:
    allocator = Allocator(Arena("test", 256))
    first = await allocator.block(256)
    big, small = (asyncio.create_task(allocator.block(n)) for n in (200, 10))
    await asyncio.sleep(0)
    del first
    block = await big
    assert not small.done()
    del block, big
    assert (await small).span.length == 10


async def test_a_waiter_who_leaves_does_not_block_those_behind() -> None:
    allocator = Allocator(Arena("test", 256))
    first = await allocator.block(128)
    big, small = (asyncio.create_task(allocator.block(n)) for n in (200, 100))
    await asyncio.sleep(0)
    big.cancel()
    assert (await small).span.length == 100
    assert first.span.length == 128


async def test_eviction_makes_room_before_anyone_waits() -> None:
    cache = EncoderCache(1 << 20, Metrics(CollectorRegistry()))
    allocator = Allocator(Arena("test", 1024), cache.evict)
    for i in range(4):
        block = await allocator.block(256)
        cache.put((i,), Encoded(block, (1,), Output("pooled", "float32"), GridTHW(1, 2, 2), 1, (1, 1), "", ""))
        del block
    await allocator.block(700)
    assert cache.shown()["entries"] <= 1
