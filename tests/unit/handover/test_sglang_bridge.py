"""What is refused at start, and rows on their way through ZeroMQ."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import socket
import weakref
from collections.abc import AsyncIterator
from ipaddress import ip_address
from typing import Any

import numpy as np
import pytest
import zmq
import zmq.asyncio

from foveal.errors import ConfigurationError, UrlFailed
from foveal.families.catalogue import local_spec
from foveal.handover.sglang.bridge import check_model, make_bridge, public_url
from foveal.handover.sglang.push import Pusher
from foveal.settings import Settings

LOOPBACK = ip_address("127.0.0.1")
REGISTER: dict[str, Any] = {"sglang": True, "sglang_register_url": ["http://language:8997/"]}


@pytest.fixture
async def pusher() -> AsyncIterator[Pusher]:
    made = Pusher(connect_seconds=0.1)
    yield made
    made.close()


@pytest.fixture
async def pull() -> AsyncIterator[zmq.asyncio.Socket]:
    context = zmq.asyncio.Context()
    yield context.socket(zmq.PULL)
    context.destroy(linger=0)


@pytest.mark.parametrize("size", [1, 100, 1 << 16, (1 << 24) + 3])
async def test_rows_arrive_and_are_let_go(pusher: Pusher, pull: zmq.asyncio.Socket, size: int) -> None:
    port = pull.bind_to_random_port("tcp://127.0.0.1")
    rows = np.random.default_rng(0).integers(0, 256, size, np.uint8)
    _, message = await asyncio.gather(pusher.push(LOOPBACK, port, b"head", rows), pull.recv_multipart())
    assert message == [b"head", rows.tobytes()]


async def test_a_socket_that_listens_later_is_found(pusher: Pusher, pull: zmq.asyncio.Socket) -> None:
    taken = socket.socket()  # nobody else gets its port meanwhile
    taken.bind((str(LOOPBACK), 0))
    port = taken.getsockname()[1]
    late = Pusher()
    pushed = asyncio.create_task(late.push(LOOPBACK, port, b"head", None))
    await asyncio.sleep(0)
    taken.listen()
    pull.setsockopt(zmq.USE_FD, taken.detach())
    pull.bind(f"tcp://127.0.0.1:{port}")
    assert await pull.recv_multipart() == [b"head"]
    await pushed
    late.close()


async def test_where_nobody_listens_the_push_fails(pusher: Pusher) -> None:
    with socket.socket() as taken:  # a port that nobody else gets, and where nobody listens
        taken.bind((str(LOOPBACK), 0))
        with pytest.raises(UrlFailed, match="nobody takes embeddings"):
            await pusher.push(LOOPBACK, taken.getsockname()[1], b"head", np.zeros(10, np.uint8))


GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
READY = b"\x04\x1a\x05READY\x0bSocket-Type\x00\x00\x00\x04PULL"


async def test_a_push_that_is_cancelled_lets_its_rows_go(pusher: Pusher) -> None:
    began, done = asyncio.Event(), asyncio.Event()

    async def never_read_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(GREETING + READY)
        await reader.readexactly(1000)
        began.set()
        await done.wait()
        writer.transport.abort()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    server = await asyncio.start_server(never_read_on, "127.0.0.1", limit=1000)
    rows = np.zeros(64 << 20, np.uint8)  # more than all buffers on the way hold
    alive = weakref.ref(rows)
    pushed = asyncio.create_task(pusher.push(LOOPBACK, server.sockets[0].getsockname()[1], b"head", rows))
    del rows
    await began.wait()
    assert not pushed.done()
    pushed.cancel()
    await asyncio.wait((pushed,))
    assert pushed.cancelled()
    del pushed
    for _ in range(5000):  # ZeroMQ's thread lets go
        if alive() is None:
            break
        await asyncio.sleep(0.001)
    assert alive() is None
    done.set()
    server.close()
    await server.wait_closed()
    await asyncio.sleep(0)


def test_the_other_settings_do_nothing_alone() -> None:
    for alone in ({"sglang_allow_host": ["h"]}, {"sglang_public_url": "http://h:1/sglang"}):
        with pytest.raises(ConfigurationError, match="without --sglang"):
            make_bridge(Settings(**alone), ())
    assert make_bridge(Settings(), ()) is None


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match="pyzmq"):
        make_bridge(Settings(sglang=True), ())


@pytest.mark.parametrize("model", ["tiny", "tiny-qwen2-vl", "tiny-qwen2.5-vl", "tiny-qwen3.5", "tiny-qwen3-omni"])
def test_models_that_sglang_splits_are_served(model: str) -> None:
    check_model(Settings(sglang=True), local_spec(f"builtin:{model}", dummy_weights=True))


@pytest.mark.parametrize("model", ["tiny-clip", "tiny-siglip", "tiny-dinov2"])
def test_models_that_it_does_not_split_are_refused(model: str) -> None:
    spec = local_spec(f"builtin:{model}", dummy_weights=True)
    check_model(Settings(), spec)
    with pytest.raises(ConfigurationError, match="--language-only"):
        check_model(Settings(sglang=True), spec)


@pytest.mark.parametrize(
    "settings, keys, words",
    [
        ({"host": "0.0.0.0"}, (), "--sglang-public-url"),
        ({}, ("secret",), "no key"),
        ({"sglang_public_url": "http://x:other@h:1/sglang"}, ("secret",), "no key"),
    ],
)
def test_a_registration_that_would_lead_nowhere_is_refused(
    settings: dict[str, Any], keys: tuple[str, ...], words: str
) -> None:
    with pytest.raises(ConfigurationError, match=words):
        make_bridge(Settings(**REGISTER | settings), keys)


async def test_a_registration_that_leads_here_is_taken() -> None:
    for settings, keys in (({}, ()), ({"host": "::", "sglang_public_url": "http://x:s%2Fe@h:1/sglang"}, ("s/e",))):
        bridge = make_bridge(Settings(**REGISTER | settings), keys)
        assert bridge is not None
        bridge.close()


def test_the_public_url_is_that_of_the_socket_unless_it_is_given() -> None:
    assert public_url(Settings(), 8001) == "http://127.0.0.1:8001/sglang"
    assert public_url(Settings(host="::1"), 8001) == "http://[::1]:8001/sglang"
    assert public_url(Settings(sglang_public_url="https://foveal/e/"), 8001) == "https://foveal/e"


def test_a_password_in_a_url_is_not_printed() -> None:
    shown = Settings(
        sglang_public_url="http://x:secret@h:1/sglang", sglang_register_url="http://y:hidden@l:8997"
    ).shown()
    assert "secret" not in str(shown) and "hidden" not in str(shown)


@pytest.mark.parametrize("text", ["foveal:8000", "ftp://h", "http://", "http://h/?q=1"])
def test_a_url_must_be_one(text: str) -> None:
    with pytest.raises(ValueError, match="http://HOST:PORT"):
        Settings(sglang_public_url=text)
