"""The resolver: bounded lookups off the loop, and failures that say whether a retry may help."""

from __future__ import annotations

import asyncio
import socket
import threading
from ipaddress import ip_address

import pytest

from foveal.errors import UrlFailed
from foveal.fetch import resolver
from foveal.fetch.addresses import Address
from foveal.fetch.resolver import Resolver


async def test_the_system_resolves_numbers_in_every_spelling() -> None:
    for text in ("127.0.0.1", "127.1", "2130706433", "0x7f000001"):
        assert await Resolver()(text) == [ip_address("127.0.0.1")]


@pytest.mark.parametrize(
    ("error", "may_pass"),
    [
        (socket.gaierror(socket.EAI_NONAME, "unknown"), False),
        (socket.gaierror(socket.EAI_AGAIN, "later"), True),
        (UnicodeError("label too long"), False),
        (OSError("odd"), False),
    ],
    ids=repr,
)
async def test_a_failed_lookup_says_whether_a_retry_may_help(error: Exception, may_pass: bool) -> None:
    def fail(host: str) -> list[Address]:
        raise error

    with pytest.raises(UrlFailed) as failure:
        await Resolver(fail)("a.example")
    assert failure.value.retryable is may_pass


async def test_lookups_that_hang_are_bounded_and_those_given_up_count_until_they_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resolver, "MAX_LOOKUPS", 2)
    may_end, running = threading.Event(), threading.Semaphore(0)

    def hang(host: str) -> list[Address]:
        running.release()
        may_end.wait()
        return [ip_address("8.8.8.8")]

    resolve = Resolver(hang)
    given_up = [asyncio.create_task(resolve("slow.example")) for _ in range(2)]
    for _ in given_up:
        await asyncio.to_thread(running.acquire)
    for task in given_up:
        task.cancel()
    await asyncio.wait(given_up)
    third = asyncio.create_task(resolve("third.example"))
    await asyncio.sleep(0)
    assert not running.acquire(blocking=False)
    may_end.set()
    assert await third == [ip_address("8.8.8.8")]
