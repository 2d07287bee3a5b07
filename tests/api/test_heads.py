"""Heads that are too long or no HTTP: refused in order, and no error of ours."""

from __future__ import annotations

import asyncio

import pytest

from foveal.api.errors import KEPT_BYTES
from tests.api.gateways import CHAT, gateway
from tests.llm import STREAM_HEAD, Sent, Writer, chunk, fake_llm

pytestmark = pytest.mark.slow

TOO_LONG = b"a" * 70_000
LONG = {
    "path": b"GET /" + TOO_LONG + b" HTTP/1.1\r\nHost: a\r\n\r\n",
    "path_66000": b"GET /" + TOO_LONG[:66_000] + b" HTTP/1.1\r\nHost: a\r\n\r\n",
    "header": b"GET /health HTTP/1.1\r\nHost: a\r\nX: " + TOO_LONG + b"\r\n\r\n",
    "name": b"GET /health HTTP/1.1\r\nHost: a\r\n" + TOO_LONG + b": x\r\n\r\n",
    "many": b"GET /health HTTP/1.1\r\nHost: a\r\n" + b"X: y\r\n" * 40_000 + b"\r\n",
}
NO_HTTP = {
    "bytes": b"\x00\x01\x02\r\n\r\n",
    "version": b"GET / HTTP/9.9\r\n\r\n",
    "target": b"GET http://[ HTTP/1.1\r\n\r\n",
    "chunks": b"POST " + CHAT.encode() + b" HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    "pipelined": b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n\x00\r\n\r\n",
    "third": b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n" * 2 + b"\x00\r\n\r\n",
}


async def answer_to(port: int, data: bytes, then: bytes = b"") -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    if then:
        await reader.readuntil(b"first")
        writer.write(then)
    found = await reader.read()
    writer.close()
    return found


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foveal.api.protocol.LINGER_SECONDS", 0.05)


@pytest.mark.parametrize("name", LONG)
async def test_a_head_that_is_too_long_is_431_and_no_error(name: str, caplog: pytest.LogCaptureFixture) -> None:
    async with fake_llm() as llm, gateway(llm.url) as running:
        found = await answer_to(running.port, LONG[name])
        assert found.startswith(b"HTTP/1.1 431") and found.count(b"HTTP/1.1") == 1
        await running.http.get("/health")
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


@pytest.mark.parametrize("name", NO_HTTP)
async def test_what_is_no_http_is_no_error(name: str, caplog: pytest.LogCaptureFixture) -> None:
    async with fake_llm() as llm, gateway(llm.url) as running:
        found = await answer_to(running.port, NO_HTTP[name])
        assert found.startswith(b"HTTP/1.1 400") or (name == "third" and not found)
        await asyncio.sleep(0.1)  # past the linger
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_nothing_is_written_into_an_answer_that_has_begun(caplog: pytest.LogCaptureFixture) -> None:
    async def answer(sent: Sent, writer: Writer) -> None:
        writer.write(STREAM_HEAD + chunk(b"first"))
        await sent.gone.wait()

    async with fake_llm(answer) as llm, gateway(llm.url) as running:
        head = b"POST " + CHAT.encode() + b" HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}"
        found = await answer_to(running.port, head, then=b"\x00\r\n\r\n")
        assert b"HTTP/1.1" not in found and await running.ended() == {"gone": 1}
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


NEXT = b"GET /live HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
REFUSED = b"POST /nowhere HTTP/1.1\r\nHost: a\r\nContent-Type: image/png\r\n"
CLOSING = {
    "chunked": b"Transfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n",
    "long": b"Content-Length: %d\r\n\r\n" % (KEPT_BYTES + 1),
    "expecting a 100": b"Content-Length: 2\r\nExpect: 100-continue\r\n\r\n",
    "cut off": b"Content-Length: 3\r\n\r\nab",
}


async def test_behind_a_short_body_that_was_refused_unread_the_connection_stays() -> None:
    async with fake_llm() as llm, gateway(llm.url) as running:
        found = await answer_to(running.port, REFUSED + b"Content-Length: 2\r\n\r\nab" + NEXT)
    refused, _, answered = found.partition(b"HTTP/1.1 200")
    assert refused.startswith(b"HTTP/1.1 404") and b"connection: close" not in refused.lower() and answered


@pytest.mark.parametrize("kind", CLOSING)
async def test_behind_every_other_body_that_was_refused_unread_it_is_closed(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("foveal.api.errors.SILENCE_SECONDS", 0.05)
    async with fake_llm() as llm, gateway(llm.url) as running:
        found = await answer_to(running.port, REFUSED + CLOSING[kind])
    assert found.startswith(b"HTTP/1.1 404") and found.count(b"HTTP/1.1") == 1
    assert (b"connection: close" in found.lower()) == (kind != "cut off")
