"""The gateway and what its LLM servers serve: pictures go to the right model alone, and who looks is told why not."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from tests.api.gateways import CHAT, chat, gateway, image_part, text
from tests.fakes import picture
from tests.llm import STREAM_HEAD, Sent, Writer, chunk, fake_llm, listing, whole


async def lists_qwen(sent: Sent, writer: Writer) -> None:
    writer.write(listing({"id": "Qwen/Qwen3-VL-8B-Instruct", "root": "Qwen/Qwen3-VL-8B-Instruct", "parent": None}))


@pytest.mark.parametrize("model", ["Qwen/Qwen3-VL-8B-Instruct", "builtin:tiny"])
@pytest.mark.parametrize("handover", ["parts", "keys"])
async def test_pictures_for_another_model_are_refused_and_text_passes(handover: str, model: str) -> None:
    async with fake_llm() as llm, gateway(llm.url, llm_handover=handover) as running:
        llm.look = lists_qwen
        for _ in range(2):
            answer = await running.http.post(CHAT, json=chat(image_part(picture())) | {"model": model})
            error = answer.json()["error"]
            assert (answer.status_code, error["code"], error["retryable"]) == (503, "unavailable", False)
            assert "Qwen/Qwen3-VL-8B-Instruct" in error["message"] and "--llm-model" in error["message"]
        assert not llm.requests
        assert len(running.fake.pool.encoded) == 1  # for the second, nothing was encoded any more
        assert (await running.http.post(CHAT, json=chat(text("hi")))).status_code == 200
        (shown,) = (await running.http.get("/info")).json()["llm_servers"]
        assert shown["up"] and not shown["takes_embeddings"] and "builtin:tiny" in shown["problem"]
        assert shown["models"] == ["Qwen/Qwen3-VL-8B-Instruct"]
        assert (await running.http.get("/ready")).status_code == 200
        assert await running.ended(3) == {"unreachable": 2, "answered": 1}


async def test_llm_model_says_that_it_is_the_same_under_another_name() -> None:
    async with fake_llm() as llm, gateway(llm.url, llm_model="Qwen3-VL-8B-Instruct") as running:
        llm.look = lists_qwen
        assert (await running.http.post(CHAT, json=chat(image_part(picture())))).status_code == 200


async def test_of_two_llm_servers_the_right_one_gets_the_pictures() -> None:
    async with fake_llm() as wrong, fake_llm() as right, gateway(wrong.url, right.url) as running:
        wrong.look = lists_qwen
        for number in range(6):
            body = chat(image_part(picture(96, 64, str(number))))
            assert (await running.http.post(CHAT, json=body)).status_code == 200
        assert len(right.requests) == 6 and not wrong.requests


async def test_an_llm_server_that_comes_back_with_another_model_gets_no_pictures() -> None:
    async with fake_llm() as llm, gateway(llm.url) as running:
        body = chat(image_part(picture()))
        assert (await running.http.post(CHAT, json=body)).status_code == 200
        await llm.stop()
        assert (await running.http.post(CHAT, json=body)).status_code == 503
        llm.look = lists_qwen
        await llm.start()
        answer = await running.http.post(CHAT, json=body)
        assert answer.status_code == 503 and "Qwen/Qwen3-VL-8B" in answer.json()["error"]["message"]
        assert len(llm.requests) == 1


async def test_pictures_for_a_model_beside_the_right_one_are_the_callers_error() -> None:
    async def lists_two(sent: Sent, writer: Writer) -> None:
        writer.write(listing({"id": "builtin:tiny"}, {"id": "text-only"}))

    async with fake_llm() as llm, gateway(llm.url) as running:
        llm.look = lists_two
        answer = await running.http.post(CHAT, json=chat(image_part(picture())) | {"model": "text-only"})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "model")
        for model in ("builtin:tiny", ["no", "name"]):
            body = chat(image_part(picture())) | {"model": model}
            assert (await running.http.post(CHAT, json=body)).status_code == 200


async def ends(sent: Sent, writer: Writer) -> None:
    writer.write(whole(b'{"error":{"message":"EngineCore encountered an issue. See stack trace (above)"}}', 500))


async def ends_in_a_stream(sent: Sent, writer: Writer) -> None:
    event = b'data: {"error": {"message": "EngineCore encountered an issue.", "code": 500}}\n\n'
    writer.write(STREAM_HEAD + chunk(b'data: {"id": 1}\n\n') + chunk(event) + chunk(b"data: [DONE]\n\n") + chunk(b""))


async def breaks_off(sent: Sent, writer: Writer) -> None:
    writer.transport.abort()


@pytest.mark.parametrize("answer", [ends, ends_in_a_stream, breaks_off])
async def test_an_engine_that_ends_over_embeddings_is_told_to_its_operator_with_the_flag(
    answer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with fake_llm(answer) as llm, gateway(llm.url) as running:
        with caplog.at_level(logging.WARNING):
            await running.http.post(CHAT, json=chat(image_part(picture())))
        assert "--limit-mm-per-prompt" in caplog.text
        (shown,) = (await running.http.get("/info")).json()["llm_servers"]
        assert "--limit-mm-per-prompt" in shown["problem"]
        looks = len(llm.looks)
        await running.http.post(CHAT, json=chat(image_part(picture())))
        assert len(llm.looks) == looks + 1  # who comes back may be another


async def test_text_that_an_llm_server_refuses_tells_nothing_of_embeddings(caplog: pytest.LogCaptureFixture) -> None:
    async with fake_llm(ends) as llm, gateway(llm.url) as running:
        await running.http.post(CHAT, json=chat(text("hi")))
        assert "--limit-mm-per-prompt" not in caplog.text


async def test_the_watch_of_a_running_gateway_shows_a_dead_llm_server_without_traffic() -> None:
    async with fake_llm() as llm, gateway(llm.url) as running:
        await llm.stop()
        assert running.server.watch is not None
        task = asyncio.create_task(running.server.watch.run())
        while (await running.http.get("/info")).json()["llm_servers"][0]["up"]:
            await asyncio.sleep(0)
        text = (await running.http.get("/metrics")).text
        assert f'foveal_gateway_upstream_up{{upstream="127.0.0.1:{llm.port}"}} 0.0' in text
        task.cancel()
        await asyncio.wait((task,))
