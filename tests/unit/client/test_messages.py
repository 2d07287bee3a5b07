"""`vllm_messages`: no picture stays behind unseen, and an error says where in the messages it is."""

from __future__ import annotations

import base64
import json
from collections import UserDict, UserList
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest

from foveal_client import (
    AsyncClient,
    Client,
    GridTHW,
    Held,
    InvalidEmbedding,
    Undecodable,
    Usage,
    vllm_inputs,
    vllm_messages,
    vllm_messages_async,
)

from .conftest import MEDIA_TYPE

Swap = Callable[..., Any]


def part(content: bytes = b"\x01") -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": "data:image/png;base64," + base64.b64encode(content).decode()}}


def user(content: object) -> dict[str, Any]:
    return {"role": "user", "content": content}


TEXT = {"type": "text", "text": "and"}


@pytest.fixture
def serve(build: Callable[..., bytes]) -> Callable[[httpx.Request], httpx.Response]:
    """Two tokens for each image."""

    def answer(request: httpx.Request) -> httpx.Response:
        num = max(1, request.content.count(b"form-data"))
        if request.headers["content-type"] == "application/json":
            num = len(json.loads(request.content)["images"])
        arrays = [np.full((2, 3), place, np.float32) for place in range(num)]
        return httpx.Response(200, headers={"Content-Type": MEDIA_TYPE}, content=build(arrays))

    return answer


@pytest.fixture(params=["sync", "async"])
def swap(request: pytest.FixtureRequest) -> Swap:
    """Either function behind one awaited call."""

    async def call(messages: Any, handler: Callable[[httpx.Request], httpx.Response], **options: Any) -> Any:
        transport = httpx.MockTransport(handler)
        if request.param == "sync":
            with Client("http://host", transport=transport, max_retries=0) as client:
                return vllm_messages(messages, client, **options)
        async with AsyncClient("http://host", transport=transport, max_retries=0) as awaited:
            return await vllm_messages_async(messages, awaited, **options)

    return call


@pytest.mark.parametrize("form", [list, tuple, iter, UserList, lambda parts: (each for each in parts)])
@pytest.mark.parametrize("outer", [list, tuple, iter])
async def test_content_may_be_any_row_of_parts(swap: Swap, serve: Any, form: Any, outer: Any) -> None:
    found = await swap(outer([user(form([TEXT, part()])), user(form([TEXT])), user("hello")]), serve)
    assert [each["type"] for each in found[0]["content"]] == ["text", "image_embeds"]
    assert list(found[1]["content"]) == [TEXT] and found[2] == user("hello")


async def test_a_part_may_be_any_mapping(swap: Swap, serve: Any) -> None:
    [found] = await swap([UserDict(user([UserDict(part()), "bare text"]))], serve)
    assert found["content"][0]["type"] == "image_embeds" and found["content"][1] == "bare text"


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        (None, "messages must be a list of dicts, not a NoneType"),
        (user([part()]), "messages must be a list of dicts, not a dict"),
        ("hello", "messages must be a list of dicts, not a str"),
        ([SimpleNamespace(role="user", content=[part()])], r"messages\[0\] must be a dict, not a SimpleNamespace"),
        ([user("a"), user(part())], r"messages\[1\]\.content must be a text or a list of parts, not a dict"),
        ([user(5)], r"messages\[0\]\.content must be"),
        ([user([TEXT, SimpleNamespace(type="image_url")])], r"messages\[0\]\.content\[1\] must be a dict"),
    ],
)
async def test_what_could_hide_a_picture_is_a_type_error(swap: Swap, serve: Any, messages: Any, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        await swap(messages, serve)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("/etc/passwd", "needs a url"),
        ("data:image/png;base64,@@", "base64 that is not"),
        ("data:image/png", "needs a comma"),
        ("data:,\ud800", "surrogates"),
        ("data:;base64,\xe9", "base64 that is not"),
    ],
)
@pytest.mark.parametrize("others", [0, 1])
async def test_a_bad_url_names_its_place(swap: Swap, serve: Any, url: str, words: str, others: int) -> None:
    messages = [user([part()] * others), user([TEXT, {"type": "image_url", "image_url": {"url": url}}])]
    with pytest.raises(ValueError, match=rf"^messages\[1\]\.content\[1\]: .*{words}"):
        await swap(messages, serve)


@pytest.mark.parametrize(
    ("param", "named"),
    [
        ("images[0]", "messages[0].content[0]"),
        ("images[1]", "messages[1].content[1]"),
        ("images[2]", "images[2]"),
        ("dtype", "dtype"),
        (None, None),
    ],
)
@pytest.mark.parametrize("by_key", [False, True])
async def test_an_error_of_the_server_names_the_place_in_the_messages(
    swap: Swap, param: str | None, named: str | None, by_key: bool
) -> None:
    error = {"code": "undecodable", "message": "it is damaged", "param": param, "retryable": False}

    def refuse(request: httpx.Request) -> httpx.Response:
        return httpx.Response(422, json={"error": error})

    with pytest.raises(Undecodable, match="it is damaged") as refusal:
        await swap([user([part()]), user([TEXT, part(b"\x02")])], refuse, by_key=by_key)
    assert refusal.value.param == named
    assert named is None or named in str(refusal.value)


async def test_rows_that_must_not_be_handed_over_name_their_place(swap: Swap, build: Callable[..., bytes]) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        arrays = [np.ones((2, 3), np.float32), np.full((2, 3), np.nan, np.float32)]
        return httpx.Response(200, headers={"Content-Type": MEDIA_TYPE}, content=build(arrays))

    with pytest.raises(InvalidEmbedding, match=r"^messages\[0\]\.content\[2\]: .*not finite"):
        await swap([user([part(), TEXT, part(b"\x02")])], answer)


async def test_a_client_of_the_other_kind_is_named() -> None:
    for messages in ([user("no picture")], [user([part()])]):
        async with AsyncClient("http://host") as awaited:
            with pytest.raises(TypeError, match=r"AsyncClient.*vllm_messages_async"):
                vllm_messages(messages, awaited)  # type: ignore[arg-type]
        with Client("http://host") as client, pytest.raises(TypeError, match=r"not a Client.*vllm_messages"):
            await vllm_messages_async(messages, client)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="not a NoneType"):
            vllm_messages(messages, None)  # type: ignore[arg-type]


def test_offline_input_says_what_it_cannot_take(held: Held) -> None:
    with pytest.raises(TypeError, match=r"embeddings\[0\] is a Held.*Client.encode"):
        vllm_inputs([held])  # type: ignore[list-item]
    for wrong in (None, 5):
        with pytest.raises(TypeError, match="takes a list of embeddings"):
            vllm_inputs(wrong)  # type: ignore[arg-type]


@pytest.fixture
def held() -> Held:
    return Held("ab" * 32, GridTHW(1, 4, 6), 6, (6, 8), "bfloat16", "m", "00" * 32, None, Usage(1, 24, 6))


@pytest.mark.parametrize("grid", [None, 5, (1.0, 4.0, 6.0), (1, None, 6), "146", (4, 6), (1, 0, 6), (1, -4, -6), ()])
def test_a_grid_that_is_none_is_an_invalid_embedding(held: Held, grid: Any) -> None:
    with pytest.raises(InvalidEmbedding, match="grid_thw must be"):
        replace(held, grid_thw=grid).to_vllm_part()


@pytest.mark.parametrize("tokens", [None, 6.0, "6"])
def test_tokens_that_are_no_number_are_an_invalid_embedding(held: Held, tokens: Any) -> None:
    with pytest.raises(InvalidEmbedding, match="tokens must be"):
        replace(held, tokens=tokens).to_vllm_part()
