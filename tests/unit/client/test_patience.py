"""Both clients when the server is busy, slow or gone: retries, and one deadline over all of them. Time is fake."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from foveal_client import (
    AsyncClient,
    Client,
    ConnectionFailed,
    ConnectionLost,
    DeadlineExceeded,
    InternalError,
    Overloaded,
    UrlFailed,
)

Respond = Callable[..., httpx.Response]
Twin = Callable[..., Any]


class Script:
    """A server that answers, or raises, one thing after the other. Each try may take some fake seconds."""

    def __init__(self, time: Any, *steps: httpx.Response | Exception, seconds: float = 0.0) -> None:
        self.time, self.steps, self.seconds = time, list(steps), seconds
        self.timeouts_ms: list[int] = []
        self.bodies: list[bytes] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.timeouts_ms.append(int(request.headers["x-request-timeout-ms"]))
        self.bodies.append(request.content)
        self.time.at += self.seconds
        step = self.steps.pop(0)
        if isinstance(step, Exception):
            raise step
        return step


async def test_an_overloaded_server_is_asked_again_when_it_says(
    twin: Twin, time: Any, ok: Respond, refusal: Respond
) -> None:
    full = refusal(503, "overloaded", True, **{"Retry-After": "3.5"})
    script = Script(time, full, ok())
    assert (await twin("encode", script, b"picture")).shape == (2, 3)
    assert time.waits == [3.5]
    assert script.bodies == [b"picture"] * 2


async def test_every_try_is_told_what_is_left_of_the_timeout(
    twin: Twin, time: Any, ok: Respond, refusal: Respond
) -> None:
    full = refusal(503, "overloaded", True, **{"Retry-After": "3"})
    script = Script(time, full, full, ok(2), seconds=1.0)
    await twin("encode", script, [b"one", b"two"], timeout=20)
    assert script.timeouts_ms == [20_000, 16_000, 12_000]
    assert script.bodies[0].count(b"one") == script.bodies[2].count(b"one") == 1


async def test_a_kept_connection_that_the_server_closed_costs_the_caller_nothing(
    twin: Twin, time: Any, ok: Respond
) -> None:
    script = Script(time, httpx.RemoteProtocolError("Server disconnected without sending a response."), ok())
    await twin("encode", script, b"picture")
    assert time.waits == [0.0]


@pytest.mark.parametrize("error", [httpx.ConnectError("refused"), httpx.ReadError("reset")], ids=repr)
async def test_refused_and_reset_connections_are_tried_again(
    twin: Twin, time: Any, ok: Respond, error: Exception
) -> None:
    script = Script(time, error, error, ok())
    await twin("encode", script, b"picture")
    assert len(time.waits) == 2


async def test_after_the_last_retry_the_caller_gets_the_last_error(twin: Twin, time: Any) -> None:
    script = Script(time, *[httpx.ConnectError(f"refused {n}") for n in range(3)])
    with pytest.raises(ConnectionFailed, match="refused 2"):
        await twin("encode", script, b"picture")
    assert time.waits == [0.5, 0.5]


async def test_no_retries_means_one_try(twin: Twin, time: Any, refusal: Respond) -> None:
    with pytest.raises(Overloaded):
        await twin("encode", Script(time, refusal(503, "overloaded", True)), b"picture", max_retries=0)
    assert time.waits == []


@pytest.mark.parametrize(
    ("status", "code", "kind"), [(424, "url_failed", UrlFailed), (500, "internal", InternalError)], ids=str
)
async def test_other_errors_are_told_at_once(
    twin: Twin, time: Any, refusal: Respond, status: int, code: str, kind: type[Exception]
) -> None:
    with pytest.raises(kind):
        await twin("encode", Script(time, refusal(status, code, True)), b"picture")


async def test_a_wait_past_the_deadline_is_not_begun(twin: Twin, time: Any, refusal: Respond) -> None:
    script = Script(time, refusal(503, "overloaded", True, **{"Retry-After": "9"}), seconds=2.0)
    with pytest.raises(Overloaded) as caught:
        await twin("encode", script, b"picture", timeout=10)
    assert caught.value.retry_after == 9
    assert time.waits == []


async def test_a_server_that_does_not_answer_in_time_is_a_deadline(twin: Twin, time: Any) -> None:
    with pytest.raises(DeadlineExceeded):
        await twin("encode", Script(time, httpx.ReadTimeout("slow")), b"picture")
    assert time.waits == []


async def test_a_try_is_not_begun_after_the_deadline(twin: Twin, time: Any) -> None:
    class SlowPath(os.PathLike[str]):
        """A file on a slow disk."""

        def __fspath__(self) -> str:
            time.at += 100
            return os.devnull

    with pytest.raises(DeadlineExceeded):
        await twin("encode", Script(time), SlowPath())


async def test_an_answer_that_trickles_past_the_deadline_is_given_up(time: Any) -> None:
    class Trickle(httpx.AsyncByteStream):
        async def __aiter__(self) -> Any:
            yield b"a"
            await asyncio.Event().wait()

    transport = httpx.MockTransport(lambda request: httpx.Response(200, stream=Trickle()))
    async with AsyncClient("http://host", transport=transport, clock=time.clock()) as client:
        with pytest.raises(DeadlineExceeded):
            await client.encode(b"picture", timeout=0.01)


def test_the_blocking_client_looks_at_the_clock_between_reads(time: Any) -> None:
    class Trickle(httpx.SyncByteStream):
        def __iter__(self) -> Any:
            for _ in range(10):
                time.at += 1
                yield b"a"
            pytest.fail("the deadline passed unseen")

    transport = httpx.MockTransport(lambda request: httpx.Response(200, stream=Trickle()))
    with Client("http://host", transport=transport, clock=time.clock()) as client, pytest.raises(DeadlineExceeded):
        client.encode(b"picture", timeout=5)


async def test_an_answer_that_breaks_off_is_told_not_repeated(time: Any) -> None:
    class Broken(httpx.AsyncByteStream):
        async def __aiter__(self) -> Any:
            yield b"a"
            raise httpx.RemoteProtocolError("peer closed connection")

    transport = httpx.MockTransport(lambda request: httpx.Response(200, stream=Broken()))
    async with AsyncClient("http://host", transport=transport, clock=time.clock()) as client:
        with pytest.raises(ConnectionLost, match="peer closed"):
            await client.encode(b"picture")
    assert time.waits == []


async def test_a_caller_who_cancels_is_cancelled() -> None:
    asked = asyncio.Event()

    async def never(request: httpx.Request) -> httpx.Response:
        asked.set()
        await asyncio.Event().wait()
        raise AssertionError

    async with AsyncClient("http://host", transport=httpx.MockTransport(never)) as client:
        task = asyncio.create_task(client.encode(b"picture"))
        await asked.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
