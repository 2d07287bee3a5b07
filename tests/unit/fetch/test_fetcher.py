"""One fetch: redirects, failures and what is told of them, limits of time, and that nothing stays open."""

from __future__ import annotations

import asyncio
import ssl

import httpcore
import pytest

from foveal.errors import UrlFailed
from foveal.fetch.wire import MAX_HEAD_BYTES
from tests.unit.fetch.network import (
    HANG,
    OTHER,
    PUBLIC,
    Names,
    Network,
    Script,
    allowance,
    answer,
    fetcher,
    names,
    redirect,
)


async def fetch(network: Network, url: str = "http://a.example/", seconds: float = 60.0) -> bytes:
    web = fetcher(network, names(a_example=PUBLIC, b_example=OTHER), seconds=seconds)
    try:
        return await web.fetch(web.rules.url_of(url), allowance())
    finally:
        assert network.num_open == 0


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_redirects_are_followed_to_other_hosts_and_paths(status: int) -> None:
    network = Network({PUBLIC: [redirect("../x%20y?z", status), redirect("//b.example/c")], OTHER: [answer()]})
    assert await fetch(network, "http://a.example/d/e") == b"image"
    assert [stream.sent.split()[1] for stream in network.streams] == [b"/d/e", b"/x%20y?z", b"/c"]


async def test_each_hop_is_a_connection_of_its_own() -> None:
    network = Network({PUBLIC: [redirect("/b"), answer()]})
    assert await fetch(network) == b"image"
    assert len(network.streams) == 2 and all(b"Connection: close" in stream.sent for stream in network.streams)


async def test_a_loop_of_redirects_ends() -> None:
    network = Network({PUBLIC: [redirect("/")]})
    with pytest.raises(UrlFailed, match="3 times") as failure:
        await fetch(network)
    assert not failure.value.retryable and len(network.connects) == 4


@pytest.mark.parametrize("location", ["", "http://[::1", "a" * 9000])
async def test_a_redirect_to_nowhere_fails(location: str) -> None:
    with pytest.raises(UrlFailed, match="redirects") as failure:
        await fetch(Network({PUBLIC: [redirect(location)]}))
    assert not failure.value.retryable


@pytest.mark.parametrize(
    ("status", "may_pass"),
    [(404, False), (403, False), (410, False), (304, False), (204, False), (206, False)]
    + [(status, True) for status in (408, 429, 500, 502, 503, 504)],
)
async def test_other_statuses_fail_and_say_whether_a_retry_may_help(status: int, may_pass: bool) -> None:
    with pytest.raises(UrlFailed, match=str(status)) as failure:
        await fetch(Network({PUBLIC: [answer(b"", status)]}))
    assert failure.value.retryable is may_pass


@pytest.mark.parametrize(
    "script",
    [
        [],
        [b"HTTP/1.1 200 OK\r\nContent-Le"],
        [b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc"],
        [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab"],
        [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"],
        [b"SSH-2.0-OpenSSH_9.6\r\n"],
        [b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n"],
        [b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab"],
        [b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n"],
        [b"\0" * 100_000],
        httpcore.ConnectError("refused"),
        httpcore.ConnectTimeout("silent"),
    ],
    ids=repr,
)
async def test_broken_answers_fail_and_nothing_stays_open(script: Script) -> None:
    with pytest.raises(UrlFailed):
        await fetch(Network({PUBLIC: [script]}))


async def test_a_certificate_that_does_not_fit_is_not_worth_a_retry(monkeypatch: pytest.MonkeyPatch) -> None:
    network = Network({PUBLIC: [answer()]})

    async def fail(*args: object, **kwargs: object) -> None:
        raise httpcore.ConnectError("hostname mismatch") from ssl.SSLCertVerificationError("hostname mismatch")

    monkeypatch.setattr("tests.unit.fetch.network.Stream.start_tls", fail)
    with pytest.raises(UrlFailed, match="certificate") as failure:
        await fetch(network, "https://a.example/")
    assert not failure.value.retryable


@pytest.mark.parametrize(
    "line", [b"HTTP/1.1 103 Early Hints\r\n\r\n", b"X: " + b"a" * 60 + b"\r\n"], ids=["1xx", "headers"]
)
async def test_a_head_without_an_end_is_given_up(line: bytes) -> None:
    start = [] if line.startswith(b"HTTP") else [b"HTTP/1.1 200 OK\r\n"]
    network = Network({PUBLIC: [[*start, *[line * 100] * 100]]})
    with pytest.raises(UrlFailed):
        await fetch(network)
    assert sum(map(len, network.streams[0].script)) > MAX_HEAD_BYTES


@pytest.mark.parametrize(
    ("url", "script"),
    [
        ("http://a.example/", [HANG]),
        ("https://a.example/", [HANG]),
        ("http://a.example/", [b"HTTP/1.1 200 OK\r\n", HANG]),
        ("http://a.example/", [*answer(b"abc", 200, "Content-Length: 9"), HANG]),
    ],
    ids=["silent", "no handshake", "half a head", "half a body"],
)
async def test_a_server_that_hangs_is_left_in_time_and_closed(url: str, script: list[bytes]) -> None:
    with pytest.raises(UrlFailed, match="--url-timeout-seconds") as failure:
        await fetch(Network({PUBLIC: [script]}), url, seconds=0.02)
    assert failure.value.retryable


async def test_the_time_of_all_hops_counts_together() -> None:
    network = Network({PUBLIC: [redirect("/b"), [HANG]]})
    with pytest.raises(UrlFailed, match=r"0\.02 s"):
        await fetch(network, seconds=0.02)


async def test_a_caller_who_leaves_closes_the_connection() -> None:
    for url in ("http://a.example/", "https://a.example/"):
        network = Network({PUBLIC: [[HANG]]})
        task = asyncio.create_task(fetch(network, url))
        await network.hanging.wait()
        assert network.num_open == 1
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert network.num_open == 0


async def test_the_next_address_is_tried_when_one_does_not_answer() -> None:
    network = Network({PUBLIC: [httpcore.ConnectError("refused")], OTHER: [answer()]})
    web = fetcher(network, Names({"a.example": [[PUBLIC, OTHER, PUBLIC]]}))
    assert await web.fetch(web.rules.url_of("http://a.example/"), allowance()) == b"image"
    assert network.connects == [(PUBLIC, 80), (OTHER, 80)]


async def test_no_more_than_the_allowed_number_asks_one_host_at_a_time() -> None:
    network = Network({PUBLIC: [[HANG]], OTHER: [answer()]})
    web = fetcher(network, names(a_example=PUBLIC, b_example=OTHER), per_host=2)
    url = web.rules.url_of("http://a.example/")
    waiting = [asyncio.create_task(web.fetch(url, allowance())) for _ in range(5)]
    await network.hanging.wait()
    assert await web.fetch(web.rules.url_of("http://b.example/"), allowance()) == b"image"
    assert network.num_open == 2
    for task in waiting:
        task.cancel()
    await asyncio.wait(waiting)
    assert network.num_open == 0
