"""Several equal servers behind one client: turns, and another one at once where one is down, draining or full."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from foveal_client import ConnectionFailed, Draining, FovealError, InvalidRequest, Overloaded, RateLimited
from foveal_client._servers import Servers, urls_of

URLS = ["http://a", "http://b"]
Respond = Callable[..., httpx.Response]
Twin = Any


def test_servers_take_turns_and_who_failed_is_passed_over_for_a_while() -> None:
    now = [0.0]
    servers = Servers(URLS, lambda: now[0])
    assert [servers.pick() for _ in range(4)] == ["http://a", "http://b", "http://a", "http://b"]
    assert servers.failed("http://a", Draining("bye"))
    assert {servers.pick() for _ in range(4)} == {"http://b"}
    now[0] = 1.0
    assert {servers.pick() for _ in range(4)} == set(URLS)


def test_a_full_server_is_passed_over_as_long_as_it_asks_and_when_all_are_full_the_first_to_be_back_is_asked() -> None:
    servers = Servers(URLS, lambda: 0.0)
    assert servers.failed("http://b", Overloaded("full", retry_after=5.0))
    assert not servers.failed("http://a", Overloaded("full", retry_after=9.0))
    assert {servers.pick() for _ in range(4)} == {"http://b"}


@pytest.mark.parametrize(
    "error", [InvalidRequest("bad"), RateLimited("quota"), ConnectionFailed("no such name")], ids=repr
)
def test_what_another_server_would_say_too_sets_none_aside(error: FovealError) -> None:
    servers = Servers(URLS, lambda: 0.0)
    assert not servers.failed("http://a", error)
    assert {servers.pick() for _ in range(4)} == set(URLS)


async def test_a_call_whose_server_is_gone_goes_to_another_at_once(twin: Twin, time: Any, ok: Respond) -> None:
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.host)
        if request.url.host == "a":
            raise httpx.ConnectError("refused")
        return ok()

    call = twin.made(answer, base_url=URLS, max_retries=0)
    assert (await call("encode", b"picture")).shape == (2, 3)
    assert asked == ["a", "b"] and time.waits == [0.0]


async def test_when_all_are_draining_the_call_waits_as_with_one(twin: Twin, time: Any, refusal: Respond) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        return refusal(503, "draining", True)

    with pytest.raises(Draining):
        await twin.made(answer, base_url=URLS, max_retries=2)("encode", b"picture")
    assert len(time.waits) == 3 and time.waits[0] == 0.0, "one hop, then two retries"


def test_urls_come_as_one_several_or_with_commas() -> None:
    assert urls_of("http://a/, https://b") == ["http://a", "https://b"] == urls_of(["http://a", "https://b/"])
    for wrong in ([], "host:1", ["http://a", ""]):
        with pytest.raises(ValueError, match="base_url"):
            urls_of(wrong)
