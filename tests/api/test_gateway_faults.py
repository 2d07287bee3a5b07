"""LLM servers that cannot be reached, are slow, break off or die; callers who leave: nobody hangs, nothing leaks."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct

import httpx
import pytest

from foveal.handover import network
from tests.api.gateways import CHAT, Running, chat, gateway, image_part
from tests.fakes import picture
from tests.llm import STREAM_HEAD, FakeLlm, Sent, Writer, chunk, fake_llm, head, whole

pytestmark = pytest.mark.slow


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])


def all_are_up(running: Running) -> bool:
    return all(one["up"] for one in running.server.upstreams.shown())  # type: ignore[union-attr]


async def dies(sent: Sent, writer: Writer) -> None:
    writer.transport.abort()
    raise ConnectionError


async def never(sent: Sent, writer: Writer) -> None:
    await sent.gone.wait()


async def streams_for_ever(sent: Sent, writer: Writer) -> None:
    writer.write(STREAM_HEAD + chunk(b"data: first\n\n"))
    await sent.gone.wait()


async def breaks_off(sent: Sent, writer: Writer) -> None:
    writer.write(STREAM_HEAD + chunk(b"data: first\n\n"))
    await writer.drain()
    raise ConnectionError


async def test_one_that_cannot_be_reached_is_passed_over_and_counted() -> None:
    async with fake_llm() as llm, gateway(f"http://127.0.0.1:{closed_port()}", llm.url) as running:
        for _ in range(4):
            assert (await running.http.post(CHAT, json=chat(image_part(picture())))).status_code == 200
        ejections, up = running.fake.metrics.gateway_ejections, running.fake.metrics.gateway_upstream_up
        dead = running.server.upstreams.all[0].name  # type: ignore[union-attr]
        assert ejections.labels(dead)._value.get() >= 1 and up.labels(dead)._value.get() == 0
        assert up.labels(f"127.0.0.1:{llm.port}")._value.get() == 1 and len(llm.requests) == 4
        assert await running.ended(4) == {"answered": 4}


async def test_none_that_can_be_reached_is_503_and_names_the_setting() -> None:
    async with gateway(*(f"http://127.0.0.1:{closed_port()}" for _ in range(2))) as running:
        found = await running.http.post(CHAT, json=chat(image_part(picture())))
        error = found.json()["error"]
        assert (found.status_code, error["code"], error["retryable"]) == (503, "unavailable", True)
        assert "--llm-url" in error["message"] and "127.0.0.1" not in error["message"]
        assert found.headers["retry-after"] == "1" and await running.ended() == {"unreachable": 1}


async def test_one_that_comes_back_is_used_again() -> None:
    llm = FakeLlm()
    llm.port = closed_port()
    async with gateway(llm.url) as running:
        assert (await running.http.post(CHAT, json=chat("hi"))).status_code == 503
        await llm.start()
        assert (await running.http.post(CHAT, json=chat("hi"))).status_code == 200
        await llm.stop()


@pytest.mark.parametrize("reads", [True, False], ids=["after_reading", "while_sending"])
async def test_one_that_dies_before_it_answers_is_replaced_by_another(reads: bool) -> None:
    async with fake_llm(dies) as bad, fake_llm() as good, gateway(bad.url, good.url) as running:
        bad.reads = reads
        body = chat("hi") if reads else chat(image_part(picture(1600, 1600)))
        for _ in range(3):
            assert (await running.http.post(CHAT, json=body)).status_code == 200
        assert bad.requests and len(good.requests) == 3 and running.fake.metrics.gateway_requests
        assert await running.ended(3) == {"answered": 3}


async def test_a_request_that_may_have_ended_two_servers_does_not_reach_a_third() -> None:
    async with fake_llm(dies) as a, fake_llm(dies) as b, fake_llm(dies) as c, gateway(a.url, b.url, c.url) as running:
        found = await running.http.post(CHAT, json=chat("poison"))
        assert found.status_code == 503 and "broke off" in found.json()["error"]["message"]
        assert sorted(len(llm.requests) for llm in (a, b, c)) == [0, 1, 1]


async def test_one_that_breaks_off_while_it_is_sent_a_body_is_not_set_aside() -> None:
    async with fake_llm(dies) as a, fake_llm(dies) as b, gateway(a.url, b.url) as running:
        a.reads = b.reads = False
        found = await running.http.post(CHAT, json=chat("x" * 20_000_000))
        assert found.status_code == 503 and "broke off" in found.json()["error"]["message"]
        assert len(a.requests) == len(b.requests) == 1 and all_are_up(running)


async def test_large_embeddings_are_not_kept_for_another_try() -> None:
    async with fake_llm(dies) as bad, gateway(bad.url) as running:
        found = await running.http.post(CHAT, json=chat(image_part(picture(800, 800))))
        assert found.status_code == 503 and found.json()["error"]["retryable"]
        assert await running.ended() == {"unreachable": 1}


async def test_one_that_breaks_off_in_the_middle_breaks_the_callers_stream_too(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    async with fake_llm(breaks_off) as llm, gateway(llm.url) as running:
        got = b""
        with pytest.raises(httpx.RemoteProtocolError, match="incomplete"):
            async with running.http.stream("POST", CHAT, json=chat("hi", stream=True)) as response:
                async for piece in response.aiter_raw():
                    got += piece
        assert got == b"data: first\n\n"
        assert await running.ended() == {"broken_off": 1}
        assert "broken off" in caplog.text and "ASGI callable" not in caplog.text
    line = next(vars(record) for record in caplog.records if record.message == "request")
    assert (line["code"], line["failed_in"], line["upstreams_tried"]) == ("unavailable", "stream", 1)


async def test_a_declared_length_that_is_not_kept_breaks_off_too() -> None:
    async def answer(sent: Sent, writer: Writer) -> None:
        writer.write(head(200, "Content-Length: 100") + b"half")

    async with fake_llm(answer) as llm, gateway(llm.url) as running:
        with pytest.raises(httpx.RemoteProtocolError):
            await running.http.post(CHAT, json=chat("hi"))
        assert await running.ended() == {"broken_off": 1}


async def test_a_slow_one_is_504_and_a_silent_stream_breaks_off() -> None:
    async with fake_llm(never) as llm, gateway(llm.url, llm_timeout_seconds=0.05) as running:
        found = await running.http.post(CHAT, json=chat("hi"))
        assert (found.status_code, found.json()["error"]["code"]) == (504, "deadline_exceeded")
        llm.answer = streams_for_ever
        with pytest.raises(httpx.RemoteProtocolError):
            await running.http.post(CHAT, json=chat("hi"))
        assert await running.ended(2) == {"slow": 1, "broken_off": 1}


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x00\x01\x02garbage\r\n\r\n",
        *(b"HTTP/1.1 %s Whatever\r\nContent-Length: 2\r\n\r\n{}" % n for n in (b"600", b"999", b"101", b"099", b"20")),
    ],
    ids=["bytes", "600", "999", "101", "099", "20"],
)
async def test_an_answer_that_is_no_http_is_503(garbage: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async def answer(sent: Sent, writer: Writer) -> None:
        writer.write(garbage)

    async with fake_llm(answer) as llm, gateway(llm.url) as running:
        found = await running.http.post(CHAT, json=chat("hi"))
        assert (found.status_code, found.json()["error"]["code"]) == (503, "unavailable")
        assert await running.ended() == {"unreachable": 1} and all_are_up(running)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_an_early_answer_to_a_large_request_passes() -> None:
    async def answer(sent: Sent, writer: Writer) -> None:
        writer.write(whole(b'{"error":"too large"}', 413))

    async with fake_llm(answer) as llm, gateway(llm.url) as running:
        llm.reads = False
        found = await running.http.post(CHAT, json=chat(image_part(picture(1600, 1600))))
        assert (found.status_code, found.content) in ((413, b'{"error":"too large"}'),)


@pytest.mark.parametrize("end", ["close", "reset", "linger"])
async def test_one_that_answers_before_it_has_all_has_answered(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "ANSWERED_SECONDS", 0.05)

    async def answer(sent: Sent, writer: Writer) -> None:
        writer.write(head(413, "Content-Length: 7"))
        await writer.drain()
        writer.write(b"nope413")
        if end == "linger":
            return  # neither reads nor closes
        if end == "reset":
            socket_ = writer.get_extra_info("socket")
            socket_.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.close()

    async with fake_llm(answer) as a, fake_llm(answer) as b, gateway(a.url, b.url) as running:
        a.reads = b.reads = False
        for body in (chat("x" * 20_000_000), chat(image_part(picture(1600, 1600))), chat("hi")):
            found = await running.http.post(CHAT, json=body)
            assert (found.status_code, found.content) == (413, b"nope413")
        assert len(a.requests) + len(b.requests) == 3 and all_are_up(running)
        assert await running.ended(3) == {"answered": 3}


async def test_one_that_takes_the_rest_after_it_has_answered_gets_it() -> None:
    taken = 0

    async def serve(reader: asyncio.StreamReader, writer: Writer) -> None:
        nonlocal taken
        await reader.readuntil(b"\r\n\r\n")
        writer.write(head(200, "Content-Length: 2"))
        while taken < length:
            taken += len(await reader.read(1 << 16))
        writer.write(b"ok")
        await reader.read()
        writer.close()

    length = 20_000_000
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server, gateway(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}") as running:
        found = await running.http.post("/v1/files", content=bytes(length))
        assert (found.status_code, found.content, taken) == (200, b"ok", length)


@pytest.mark.parametrize("answer", [never, streams_for_ever], ids=["before_the_head", "in_the_stream"])
async def test_a_caller_who_leaves_closes_the_connection_to_the_llm_server(answer: object) -> None:
    async with fake_llm(answer) as llm, gateway(llm.url) as running:  # type: ignore[arg-type]
        call = asyncio.create_task(running.http.post(CHAT, json=chat(image_part(picture()), stream=True)))
        sent = await llm.until_sent()
        call.cancel()
        await sent.gone.wait()
        assert await running.ended() == {"gone": 1} and not llm.num_open
        with contextlib.suppress(asyncio.CancelledError):
            await call


async def test_a_caller_who_does_not_read_holds_the_llm_server_back() -> None:
    written = 0

    async def answer(sent: Sent, writer: Writer) -> None:
        nonlocal written
        writer.write(STREAM_HEAD)
        while not sent.gone.is_set():
            writer.write(chunk(bytes(1 << 20)))
            written += 1 << 20
            await writer.drain()

    async with fake_llm(answer) as llm, gateway(llm.url) as running:
        _, writer = await asyncio.open_connection("127.0.0.1", running.port, limit=1 << 10)
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}")
        before = -1
        while not written or before != written:
            before = written
            await asyncio.sleep(0.05)
        assert 0 < written < 64 << 20
        writer.transport.abort()
        assert await running.ended() == {"gone": 1}


async def test_a_hundred_streams_at_once_get_each_its_own() -> None:
    everyone = asyncio.Event()

    async def answer(sent: Sent, writer: Writer) -> None:
        writer.write(STREAM_HEAD + chunk(sent.json["user"].encode()))
        if len(llm.requests) == 100:
            everyone.set()
        await everyone.wait()
        writer.write(chunk(sent.json["user"].encode()) + chunk(b""))

    async with fake_llm(answer) as llm, gateway(llm.url) as running:
        limits = httpx.Limits(max_connections=None)
        url = f"http://127.0.0.1:{running.port}{CHAT}"
        async with httpx.AsyncClient(limits=limits, timeout=60, trust_env=False) as http:
            calls = [http.post(url, json=chat(image_part(picture(text=str(i % 7))), user=f"u{i};")) for i in range(100)]
            answers = await asyncio.gather(*calls)
        assert [answer.text for answer in answers] == [f"u{i};" * 2 for i in range(100)]
        assert len(running.fake.pool.encoded) == 7 and await running.ended(100) == {"answered": 100}


async def test_more_than_the_limit_are_told_to_wait() -> None:
    async def answer(sent: Sent, writer: Writer) -> None:
        if sent.line.startswith("POST"):
            await never(sent, writer)
        writer.write(whole(b'{"data":[{"id":"llm"}]}'))

    async with fake_llm(answer) as llm, gateway(llm.url, llm_max_requests=1) as running:
        first = asyncio.create_task(running.http.post(CHAT, json=chat("hi")))
        await llm.until_sent()
        found = await running.http.post(CHAT, json=chat("hi"))
        assert (found.status_code, found.json()["error"]["code"]) == (503, "overloaded")
        # a list of models is none of them
        found = await running.http.get("/v1/models")
        assert [entry["id"] for entry in found.json()["data"]] == ["llm", "builtin:tiny"]
        first.cancel()
        assert await running.ended(2) == {"refused": 1, "gone": 1}
        await asyncio.gather(first, return_exceptions=True)


async def test_a_drain_waits_for_streams_and_giving_up_breaks_them_off() -> None:
    async with fake_llm(streams_for_ever) as llm, gateway(llm.url) as running:
        async with running.http.stream("POST", CHAT, json=chat("hi")) as response:
            pieces = response.aiter_raw()
            assert await anext(pieces)
            drained = asyncio.create_task(running.fake.engine.gate.until_empty())
            await asyncio.sleep(0)
            assert not drained.done()
            running.server.give_up()
            with pytest.raises(httpx.RemoteProtocolError):
                await anext(pieces)
        await drained
        assert await running.ended() == {"broken_off": 1}


async def test_a_caller_who_leaves_while_pictures_are_encoded_leaves_nothing() -> None:
    async with fake_llm() as llm, gateway(llm.url) as running:
        running.fake.pool.gate.clear()
        call = asyncio.create_task(running.http.post(CHAT, json=chat(image_part(picture()))))
        while not running.fake.pool.waiting:
            await asyncio.sleep(0)
        call.cancel()
        assert await running.ended() == {"gone": 1} and not llm.requests and not running.fake.pool.waiting
        await asyncio.gather(call, return_exceptions=True)
