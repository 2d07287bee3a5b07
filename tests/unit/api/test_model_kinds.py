"""What a client meets of a model that is no Qwen-VL: /info, refused limits, scaling down, OpenAI's shape."""

from __future__ import annotations

import base64
from typing import Any

import httpx
import pytest

from foveal.api.app import create_app
from foveal.api.context import Server
from foveal.families.catalogue import local_spec
from foveal.settings import Settings
from tests.fakes import fake_service, picture

EXPECTED: dict[str, dict[str, Any]] = {
    "tiny": {"min_pixels": 65_536, "max_pixels": 16_777_216, "fixed_size": None, "merge_size": 2},
    "tiny-siglip": {"min_pixels": None, "max_pixels": None, "fixed_size": [384, 384], "tokens_per_image": 729},
    "tiny-naflex": {"min_pixels": None, "max_pixels": 65_536, "fixed_size": None, "tokens_per_image": None},
    "tiny-dinov2-registers": {"prefix_rows": 5, "fixed_size": [224, 224], "tokens_per_image": 261, "patch_size": 14},
}


def client_of(model: str, max_image_tokens: int = 16_384) -> httpx.AsyncClient:
    fake = fake_service(max_image_tokens=max_image_tokens)
    fake.engine.spec = local_spec(f"builtin:{model}", dummy_weights=True)
    server = Server(Settings(), fake.metrics, service=fake.service)
    return httpx.AsyncClient(transport=httpx.ASGITransport(create_app(server)), base_url="http://foveal")


@pytest.mark.parametrize("model", EXPECTED)
async def test_info_says_which_sizes_a_model_takes_and_which_rows_it_gives(model: str) -> None:
    async with client_of(model) as client:
        shown = (await client.get("/info")).json()
    assert {name: shown[name] for name in EXPECTED[model]} == EXPECTED[model]
    assert shown["outputs"].keys() == {"tokens", "pooled"} and shown["default_output"] in shown["outputs"]


async def test_a_limit_on_a_model_of_one_size_is_a_400_before_any_picture_is_read() -> None:
    async with client_of("tiny-clip") as client:
        for route, body in (("/encode", {"images": ["not even base64"]}), ("/v1/embeddings", {"input": ["aGk="]})):
            answer = await client.post(route, json=body | {"max_pixels": 1000, "model": "builtin:tiny-clip"})
            assert answer.status_code == 400, answer.text


async def test_a_limit_is_named_as_the_culprit() -> None:
    async with client_of("tiny-clip") as client:
        answer = await client.post("/encode?min_pixels=1000", content=picture(), headers={"content-type": "image/png"})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (400, "invalid_request", "min_pixels")
    assert "224 x 224" in error["message"]


async def test_naflex_scales_down_to_the_servers_limit_where_it_is_asked_to() -> None:
    async with client_of("tiny-naflex", max_image_tokens=100) as client:
        sent = {"content": picture(1400, 1000), "headers": {"content-type": "application/octet-stream"}}
        refused = await client.post("/encode", **sent)
        scaled = await client.post("/encode?oversize=downscale", **sent)
        asked = await client.post("/encode?max_pixels=12800", **sent)
    assert refused.status_code == 413 and "oversize=downscale" in refused.json()["error"]["message"]
    assert 80 <= scaled.json()["data"][0]["tokens"] <= 100
    assert 40 <= asked.json()["data"][0]["tokens"] <= 50


async def test_openais_route_gives_one_normal_list_of_numbers_for_each_picture() -> None:
    async with client_of("tiny-naflex") as client:
        body = {"input": [base64.b64encode(picture()).decode()] * 2, "model": "builtin:tiny-naflex"}
        answer = (await client.post("/v1/embeddings", json=body)).json()
    assert answer["object"] == "list" and answer["model"] == "builtin:tiny-naflex"
    assert [(d["object"], d["index"], len(d["embedding"])) for d in answer["data"]] == [
        ("embedding", 0, 64),
        ("embedding", 1, 64),
    ]
    assert answer["usage"]["prompt_tokens"] == answer["usage"]["total_tokens"] > 0
