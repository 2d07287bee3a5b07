"""Requests that ask for another protocol are served as HTTP/1.1, wherever the network cut them."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable, Sequence
from typing import Any, cast

import httptools
import pytest
import uvicorn
from hypothesis import example, given, settings
from hypothesis import strategies as st
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from foveal.api.protocol import BoundedProtocol

Seen = list[tuple[str, str, tuple[tuple[bytes, bytes], ...], bytes]]


class Wire(asyncio.Transport):
    """A transport that remembers what was written."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)})
        self.written = b""
        self.is_closed = False

    def write(self, data: Any) -> None:
        self.written += bytes(data)

    def write_eof(self) -> None:
        self.is_closed = True

    def close(self) -> None:
        self.is_closed = True

    abort = close

    def is_closing(self) -> bool:
        return self.is_closed

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


async def served(pieces: Iterable[bytes]) -> tuple[Seen, bytes]:
    """What the application saw of these segments, and what it was answered."""
    seen: Seen = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        seen.append((scope["method"], scope["path"], tuple(scope["headers"]), body))
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})

    config = uvicorn.Config(cast(Any, app), log_config=None, lifespan="off", server_header=False, date_header=False)
    protocol, wire = BoundedProtocol(config, ServerState(), {}), Wire()
    protocol.connection_made(wire)
    for piece in pieces:
        if not wire.is_closed:
            protocol.data_received(piece)
    while protocol.tasks:
        await asyncio.wait(set(protocol.tasks), timeout=1)
        await asyncio.sleep(0)
    protocol.connection_lost(None)
    return seen, wire.written


def cut(data: bytes, places: Iterable[int]) -> list[bytes]:
    edges = [0, *sorted({place % (len(data) + 1) for place in places}), len(data)]
    return [data[start:stop] for start, stop in itertools.pairwise(edges) if start < stop]


UPGRADES = (
    b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQBAAAAAAIAAAAA\r\n",
    b"uPGRADE:websocket\r\nCONNECTION: keep-alive, upgrade\r\nSec-WebSocket-Key: eA==\r\n",
    b"Connection: upgrade\r\nX: y\r\nUpgrade: h2c\r\nUpgrade: TLS/1.0\r\n",
    b"Upgrade:\t h2c \r\nConnection: close, upgrade\r\n",
    b"Upgrade: h2c\r\n",  # of no effect without Connection
)
PLAIN = b"X-Note: \r\nupgrade-insecure-requests: 1\r\n"
BODIES = {
    "none": (b"", b""),
    "length": (b"Content-Length: 30\r\n", b"\r\nUpgrade: h2c\r\n\r\nGET / HTTP/1"),
    "chunks": (b"Transfer-Encoding: chunked\r\n", b"5\r\nHELLO\r\n3;a=b\r\nyou\r\n0\r\n\r\n"),
    "patient": (b"Expect: 100-continue\r\nContent-Length: 2\r\n", b"hi"),
}


def request(upgrade: bytes, kind: str, path: bytes = b"/a?b=c") -> bytes:
    head, body = BODIES[kind]
    return b"POST " + path + b" HTTP/1.1\r\nHost: a\r\n" + upgrade + head + b"\r\n" + body


def run(pieces: Sequence[bytes]) -> tuple[Seen, bytes]:
    return asyncio.run(served(pieces))


@pytest.mark.parametrize("kind", BODIES)
@pytest.mark.parametrize("upgrade", UPGRADES)
def test_a_request_that_asks_for_an_upgrade_keeps_its_body_at_every_cut(upgrade: bytes, kind: str) -> None:
    data = request(upgrade, kind)
    wanted = b"HELLOyou" if kind == "chunks" else BODIES[kind][1]
    for place in range(1, len(data)):
        ((method, path, _, body),), answer = run(cut(data, [place]))
        assert (method, path, body) == ("POST", "/a", wanted)
        assert answer.count(b"HTTP/1.1 200") == 1 and answer.endswith(b"ok")
        assert answer.startswith(b"HTTP/1.1 100 Continue") == (kind == "patient")
    assert run(list(iter_bytes(data))) == run([data])


def iter_bytes(data: bytes) -> Iterable[bytes]:
    return (data[i : i + 1] for i in range(len(data)))


REQUESTS = st.builds(request, st.sampled_from((*UPGRADES, PLAIN)), st.sampled_from(sorted(BODIES)))


@settings(max_examples=150, deadline=None)
@given(st.lists(REQUESTS, min_size=1, max_size=3), st.lists(st.integers(0, 4000), max_size=12))
def test_any_cut_of_pipelined_requests_is_the_same(requests: list[bytes], places: list[int]) -> None:
    data = b"".join(requests)
    assert run(cut(data, places)) == run([data])
    alone = [run([one])[0] for one in requests]
    ends = next((i + 1 for i, one in enumerate(requests) if b"close, upgrade" in one), len(requests))
    assert run([data])[0] == [seen for one in alone[:ends] for seen in one]


ODD = (
    b"POST / HTTP/1.1\nHost: a\nConnection: upgrade\nUpgrade: h2c\nContent-Length: 2\n\nhi",  # bare line ends
    b"POST / HTTP/1.1\r\nHost: a\r\nConnection: close,\r\n upgrade\r\nUpgrade: h2c\r\nContent-Length: 2\r\n\r\nhi",
    b"POST / HTTP/1.1\r\nHost: a\r\nX: a\r\n\tb\r\nUpgrade: h2c\r\nConnection: upgrade\r\nContent-Length: 2\r\n\r\nhi",
    b"POST / HTTP/1.0\r\nConnection: upgrade\r\nUpgrade: h2c\r\nContent-Length: 2\r\n\r\nhi",
    b"CONNECT a:80 HTTP/1.1\r\nHost: a:80\r\n\r\nhi",
    b"CONNECT / HTTP/1.1\r\nHost: a:80\r\nContent-Length: 2\r\n\r\nhi",
    b"CONNECT //a HTTP/1.1\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\nhi",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"OPTIONS * HTTP/1.1\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n",
    b"POST / HTTP/1.1\r\nConnection: upgrade\r\nUpgrade: h2c\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nhi",
    b"POST / HTTP/1.1\r\nConnection: upgrade\r\nUpgrade: h2c\r\nContent-Length: 2\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"POST / HTTP/1.1\r\nConnection: upgrade\r\nUpgrade : h2c\r\nContent-Length: 2\r\n\r\nhi",
    b"GET / HTTP/1.1\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n\x00\x01",
)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(ODD), st.lists(st.integers(0, 400), max_size=8))
@example(ODD[0], [60])
def test_what_is_odd_or_no_http_is_the_same_at_any_cut(data: bytes, places: list[int]) -> None:
    seen, answer = run(cut(data, places))
    assert (seen, answer) == run([data])
    assert seen or answer.startswith(b"HTTP/1.1 400")


def test_an_upgrade_is_not_shown_to_the_application_and_all_else_is() -> None:
    ((_, _, headers, _),), _ = run([request(UPGRADES[0], "length")])
    assert headers == (
        (b"host", b"a"),
        (b"connection", b"Upgrade, HTTP2-Settings"),
        (b"http2-settings", b"AAMAAABkAAQBAAAAAAIAAAAA"),
        (b"content-length", b"30"),
    )


def test_a_body_is_looked_at_by_the_parser_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    class Body(bytes):
        def _not_here(self, *args: object) -> Any:
            raise AssertionError("a body was searched or copied")

        lower = find = index = split = replace = __getitem__ = _not_here

    head = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n"
    fed: list[object] = []
    feed = httptools.HttpRequestParser.feed_data

    class Parser(httptools.HttpRequestParser):  # type: ignore[misc]
        def feed_data(self, data: object) -> None:
            fed.append(data)
            feed(self, data)

    monkeypatch.setattr(httptools, "HttpRequestParser", Parser)
    whole = Body(head + bytes(100_000))
    ((_, _, _, body),), _ = run([whole])
    assert len(body) == 100_000 and fed == [whole] and fed[0] is whole


def test_the_internals_of_uvicorn_that_are_relied_on_are_there() -> None:
    """`BoundedProtocol` extends a class that uvicorn does not document. Where this fails, read its new version."""
    called = (
        "connection_made", "connection_lost", "data_received", "send_400_response", "on_message_begin", "on_url",
        "on_header", "on_headers_complete", "on_body", "on_message_complete", "_unset_keepalive_if_required",
    )  # fmt: skip
    assert all(callable(getattr(HttpToolsProtocol, name)) for name in called)
    config = uvicorn.Config(cast(Any, None), log_config=None, lifespan="off")
    made = HttpToolsProtocol(config, ServerState(), {}, asyncio.new_event_loop())
    made.loop.close()
    kept = ("parser", "transport", "loop", "cycle", "pipeline", "scope", "url", "headers", "logger")
    made.on_message_begin()
    assert all(hasattr(made, name) for name in kept)
    arguments = RequestResponseCycle.__init__.__annotations__
    assert {"transport", "message_event"} <= set(arguments)
