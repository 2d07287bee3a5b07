"""Connections that hear what is answered while a request is still being sent, also when they are reset at once."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator

import httpcore
import pytest

from foveal.handover import network
from foveal.handover.network import Network

ANSWER = b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n"


class Peer:
    """The other end. It blocks this loop, so that nothing can be read before what it does is done."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener

    def answer_and_reset(self, answer: bytes) -> None:
        sock, _ = self._listener.accept()
        with sock:
            sock.recv(1)
            sock.sendall(answer)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def answer(self, answer: bytes) -> socket.socket:
        sock, _ = self._listener.accept()
        sock.sendall(answer)
        return sock


@pytest.fixture
async def ends() -> AsyncIterator[tuple[Network, httpcore.AsyncNetworkStream, Peer]]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        made = Network()
        stream = await made.connect_tcp("127.0.0.1", listener.getsockname()[1])
        assert not made.has_sent
        yield made, stream, Peer(listener)
        await made.aclose()


@pytest.mark.parametrize("answer", [ANSWER, ANSWER + bytes(100_000)], ids=["short", "long"])
async def test_an_answer_is_read_though_the_connection_was_reset_before_the_loop_saw_either(ends, answer) -> None:  # type: ignore[no-untyped-def]
    made, stream, peer = ends
    await stream.write(b"head")
    assert made.has_sent
    peer.answer_and_reset(answer)
    with pytest.raises(httpcore.WriteError):
        for _ in range(3):  # the loop tells of the reset with the write after it
            await stream.write(bytes(1 << 20))
    found = b""
    while len(found) < len(answer):
        found += await stream.read(1 << 14)
    assert found == answer
    with pytest.raises(httpcore.ReadError):
        await stream.read(1)


async def test_one_that_answers_and_takes_no_more_does_not_keep_the_write(ends, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(network, "ANSWERED_SECONDS", 0.01)
    _, stream, peer = ends
    await stream.write(b"head")
    with peer.answer(ANSWER), pytest.raises(httpcore.WriteError, match="takes no more"):
        for _ in range(100):
            await stream.write(bytes(1 << 20))
    assert await stream.read(1 << 16) == ANSWER


async def test_what_is_heard_early_is_bounded(ends, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(network, "EARLY_BYTES", 1000)
    _, stream, peer = ends
    await stream.write(b"head")
    sent = bytes(range(256)) * 1000
    with peer.answer(b"") as sock:
        sending = asyncio.to_thread(sock.sendall, sent)
        task = asyncio.create_task(sending)
        while not stream._listener.done():
            await asyncio.sleep(0)
        assert len(stream._early) < 1000 + (64 << 10)
        found = b""
        while len(found) < len(sent):
            found += await stream.read(999)
        await task
        assert found == sent


async def test_closing_leaves_no_task_and_no_file(ends) -> None:  # type: ignore[no-untyped-def]
    made, stream, peer = ends
    await stream.write(b"head")
    listener, second = stream._listener, stream._second
    with peer.answer(b"") as sock:
        await made.aclose()
        assert listener.done() and second.fileno() == -1
        while True:
            try:
                if not sock.recv(100):
                    break
            except ConnectionResetError:
                break
