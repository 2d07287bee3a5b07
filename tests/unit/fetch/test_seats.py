"""Seats: bounded for a host and in all; hosts nobody uses are forgotten."""

from __future__ import annotations

import asyncio

import pytest

from foveal.fetch.seats import Seats


async def test_hosts_are_known_only_while_somebody_uses_or_waits_for_them() -> None:
    seats = Seats(1, 10)
    async with seats.seat("a"):
        waiter = asyncio.create_task(seats.seat("a").__aenter__())
        await asyncio.sleep(0)
        assert len(seats) == 1 and not waiter.done()
        waiter.cancel()
        await asyncio.wait([waiter])
        async with seats.seat("b"):
            assert len(seats) == 2
    assert len(seats) == 0


async def test_who_waits_for_a_slow_host_keeps_no_seat_from_others() -> None:
    seats = Seats(1, 2)
    async with seats.seat("slow"):
        waiters = [asyncio.create_task(seats.seat("slow").__aenter__()) for _ in range(5)]
        await asyncio.sleep(0)
        async with seats.seat("quick"):
            pass
        for waiter in waiters:
            waiter.cancel()
        await asyncio.wait(waiters)


async def test_there_are_so_many_seats_in_all() -> None:
    seats = Seats(5, 1)
    async with seats.seat("a"):
        waiter = asyncio.create_task(seats.seat("b").__aenter__())
        await asyncio.sleep(0)
        assert not waiter.done()
    await waiter


async def test_a_fetch_that_fails_gives_its_seat_back() -> None:
    seats = Seats(1, 1)
    for _ in range(3):
        with pytest.raises(ValueError):
            async with seats.seat("a"):
                raise ValueError
    assert len(seats) == 0
