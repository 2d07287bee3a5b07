"""`GET /v1/models/NAME`: OpenAI's object, whatever is in the name; and a model of random weights says so."""

from __future__ import annotations

import dataclasses
from urllib.parse import quote

import httpx
import pytest

from foveal.api.context import Server
from tests.api.gateways import gateway
from tests.fakes import FakeService
from tests.llm import Sent, Writer, fake_llm, whole

NAMES = ["plain", "Qwen/Qwen3-VL-8B-Instruct", "a b/ü?#%41", "/models/x", "a/b/c/", "builtin:tiny"]


def call(fake: FakeService, name: str) -> None:
    fake.engine.spec = dataclasses.replace(fake.engine.spec, name=name)


@pytest.mark.parametrize("safe", ["", "/"], ids=["escaped", "raw"])
@pytest.mark.parametrize("name", NAMES)
async def test_a_model_is_found_by_its_name(client: httpx.AsyncClient, fake: FakeService, name: str, safe: str) -> None:
    call(fake, name)
    url = httpx.URL("http://foveal").copy_with(raw_path=b"/v1/models/" + quote(name, safe=safe).encode())
    answer = await client.get(url)
    listed = (await client.get("/v1/models")).json()["data"]
    assert answer.status_code == 200 and [answer.json()] == listed
    assert set(answer.json()) == {"id", "object", "created", "owned_by"} and answer.json()["id"] == name
    assert (await client.head(url)).status_code == 200


@pytest.mark.parametrize("name", ["other", "builtin", "builtin:tiny/", "BUILTIN:TINY", "builtin%253Atiny", "x" * 5000])
async def test_another_name_is_not_found(client: httpx.AsyncClient, name: str) -> None:
    answer = await client.get(f"/v1/models/{name}")
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (404, "model_not_found", "model")
    assert "'builtin:tiny'" in error["message"] and len(error["message"]) < 300
    assert (await client.post("/v1/models/builtin:tiny")).status_code == 405


async def test_no_name_is_the_list(client: httpx.AsyncClient) -> None:
    assert (await client.get("/v1/models/")).json() == (await client.get("/v1/models")).json()


async def test_it_asks_for_a_key_and_for_a_model_that_is_known(client: httpx.AsyncClient, server: Server) -> None:
    server.keys = ("right",)
    assert (await client.get("/v1/models/builtin:tiny")).status_code == 401
    good = {"Authorization": "Bearer right"}
    assert (await client.get("/v1/models/builtin:tiny", headers=good)).status_code == 200
    server.service = None
    assert (await client.get("/v1/models/builtin:tiny", headers=good)).status_code == 503


async def test_behind_a_gateway_the_models_of_the_llm_server_are_found_too() -> None:
    async def answer(sent: Sent, writer: Writer) -> None:
        writer.write(whole(b'{"data":[{"id":"Qwen/LLM","object":"model","max_model_len":7}]}'))

    async with fake_llm(answer) as llm, gateway(llm.url) as running:
        for path in ("Qwen/LLM", "Qwen%2FLLM"):
            found = await running.http.get(f"/v1/models/{path}")
            assert found.json() == {"id": "Qwen/LLM", "object": "model", "max_model_len": 7}
        own = await running.http.get("/v1/models/builtin:tiny")
        assert own.json()["owned_by"] == "foveal"
        missing = await running.http.get("/v1/models/none")
        assert missing.status_code == 404 and "Qwen/LLM" in missing.json()["error"]["message"]
        assert (await running.http.get("/v1/models/")).json() == (await running.http.get("/v1/models")).json()


async def test_behind_a_gateway_whose_llm_server_is_away_a_foreign_name_is_unavailable_and_not_unknown() -> None:
    async with gateway("http://127.0.0.1:9") as running:
        assert (await running.http.get("/v1/models/builtin:tiny")).status_code == 200
        assert (await running.http.get("/v1/models/other")).status_code == 503


@pytest.mark.parametrize("is_random", [True, False])
async def test_random_weights_are_told_where_one_looks(
    client: httpx.AsyncClient, fake: FakeService, is_random: bool
) -> None:
    fake.engine.spec = dataclasses.replace(fake.engine.spec, dummy_weights=is_random)
    ready, info = (await client.get("/ready")).json(), (await client.get("/info")).json()
    for warnings in (ready.get("warnings", []), info["warnings"]):
        assert len(warnings) == is_random and all("random weights" in one for one in warnings)
