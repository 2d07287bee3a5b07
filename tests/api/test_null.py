"""JSON's null is as if the option were not there, on all routes."""

from __future__ import annotations

import base64
from typing import Any

import httpx
import pytest

from foveal.api.options import Options
from tests.fakes import picture

GOOD = base64.b64encode(picture()).decode()
URI = f"data:image/png;base64,{GOOD}"
ITEMS: list[Any] = [
    {"url": URI, "data": None},
    {"url": None, "data": GOOD},
    {"type": None, "url": None, "image_url": {"url": URI, "detail": None}},
    {"type": "image_url", "image_url": {"url": URI}, "url": None, "data": None, "uuid": None},
    {"image_url": None, "url": URI},
    {"image_url": None, "url": None, "data": GOOD},
    {"type": "image_url", "image_url": URI, "detail": None},
]


@pytest.mark.parametrize("route", ["/encode", "/v1/embeddings"])
@pytest.mark.parametrize("name", Options.model_fields)
async def test_an_option_that_is_null_changes_nothing(client: httpx.AsyncClient, route: str, name: str) -> None:
    field = "images" if route == "/encode" else "input"
    plain = await client.post(route, json={field: [GOOD]})
    null = await client.post(route, json={field: [GOOD], name: None})
    assert (null.status_code, plain.status_code) == (200, 200), null.text
    assert null.json()["data"][0]["embedding"] == plain.json()["data"][0]["embedding"]


@pytest.mark.parametrize("route", ["/encode", "/v1/embeddings"])
async def test_all_options_may_be_null_at_once_and_those_of_openai_too(client: httpx.AsyncClient, route: str) -> None:
    nothing: dict[str, Any] = dict.fromkeys(Options.model_fields)
    body = {"images": [GOOD]} if route == "/encode" else {"input": GOOD, "user": None, "dimensions": None}
    assert (await client.post(route, json=nothing | body)).status_code == 200


async def test_a_null_of_the_body_does_not_undo_what_the_query_says(client: httpx.AsyncClient) -> None:
    answer = await client.post("/encode?dtype=float16", json={"images": [GOOD], "dtype": None})
    assert answer.json()["data"][0]["dtype"] == "float16"


@pytest.mark.parametrize("item", ITEMS, ids=str)
@pytest.mark.parametrize("route", ["/encode", "/v1/embeddings"])
async def test_fields_of_a_picture_may_be_null(client: httpx.AsyncClient, route: str, item: Any) -> None:
    field = "images" if route == "/encode" else "input"
    assert (await client.post(route, json={field: [item]})).status_code == 200


@pytest.mark.parametrize(
    "item", [None, {}, {"url": None}, {"image_url": {"url": None}}, {"type": "image_url"}], ids=str
)
async def test_a_picture_that_is_null_is_still_missing(client: httpx.AsyncClient, item: Any) -> None:
    answer = await client.post("/encode", json={"images": [item]})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "images[0]")
    assert (await client.post("/encode", json={"images": None})).status_code == 400
    assert (await client.post("/v1/embeddings", json={"input": None})).status_code == 400


async def test_options_of_a_chat_may_be_null(client: httpx.AsyncClient) -> None:
    part = {"type": "image_url", "image_url": {"url": URI, "detail": None}, "uuid": None, "text": None}
    nothing = ("model", "priority", "stream", "mm_processor_kwargs", "media_io_kwargs", "max_tokens", "tools", "user")
    message = {"role": "user", "content": [part], "name": None}
    answer = await client.post("/v1/chat/completions", json={"messages": [message], **dict.fromkeys(nothing)})
    assert answer.status_code == 200, answer.text
    assert len(answer.json()["ec_transfer_params"]) == 1


@pytest.mark.parametrize("name", ["videos", "texts", "modality", "a slip"])
async def test_null_is_absent_under_any_name(client: httpx.AsyncClient, name: str) -> None:
    answer = await client.post("/encode", json={"images": [base64.b64encode(picture()).decode()], name: None})
    assert answer.status_code == 200, answer.text
