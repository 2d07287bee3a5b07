"""Embeddings in vLLM's forms: chat parts, whole messages, offline input."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import httpx
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save

from foveal_client import (
    AsyncClient,
    Client,
    Embedding,
    GridTHW,
    InvalidEmbedding,
    Level,
    Usage,
    vllm_inputs,
    vllm_messages,
    vllm_messages_async,
)
from foveal_client._torch_archive import torch_archive
from foveal_client._vllm import base64_archive, image_embeds_part

torch = pytest.importorskip("torch")
KEY = "ab" * 32
MEDIA_TYPE = "application/vnd.foveal.safetensors"


def embedding(fill: float = 0.5, **other: Any) -> Embedding:
    values = np.full((6, 8), fill, ml_dtypes.bfloat16)
    levels = (Level("main", 0, 4), Level("deepstack_0", 4, 8))
    made = Embedding(values, GridTHW(1, 4, 6), 6, "m", "bfloat16", "00", KEY, levels, None, {}, Usage(1, 24, 6))
    return replace(made, **other)


def tensor_in(part: dict[str, Any]) -> Any:
    file = base64.b64decode(part["image_embeds"]["image_embeds"], validate=True)
    return torch.load(io.BytesIO(file), weights_only=True)


def test_a_part_has_rows_grid_and_key_and_nothing_else() -> None:
    part = embedding().to_vllm_part()
    assert json.loads(json.dumps(part)) == part
    assert set(part) == {"type", "image_embeds", "uuid"}
    assert set(part["image_embeds"]) == {"image_embeds", "image_grid_thw"}
    assert (part["type"], part["uuid"], part["image_embeds"]["image_grid_thw"]) == ("image_embeds", KEY, [1, 4, 6])
    tensor = tensor_in(part)
    assert (tensor.shape, tensor.dtype) == ((6, 8), torch.bfloat16)
    assert (tensor == 0.5).all()


def test_a_part_by_key_leaves_the_rows_out() -> None:
    part = embedding().to_vllm_part(by_key=True)
    assert part == {"type": "image_embeds", "image_embeds": {"image_grid_thw": [1, 4, 6]}, "uuid": KEY}


@settings(max_examples=60, deadline=None)
@given(rows=st.integers(1, 9), width=st.integers(1, 9), dtype=st.sampled_from([ml_dtypes.bfloat16, "<f2", "<f4"]))
def test_base64_in_pieces_is_base64_of_the_whole(rows: int, width: int, dtype: Any) -> None:
    values = np.arange(rows * width).reshape(rows, width).astype(np.dtype(dtype))
    whole = b"".join(torch_archive(values.tobytes(), values.dtype.name, values.shape).buffers())
    assert base64_archive(values) == base64.b64encode(whole).decode()


def test_rows_that_are_no_contiguous_memory_are_sent_as_they_read() -> None:
    values = np.arange(96, dtype=np.float32).reshape(6, 16)[:, ::2]
    assert tensor_in(image_embeds_part(values, (1, 4, 6), KEY)).tolist() == values.tolist()


@pytest.mark.parametrize(
    ("spoiled", "why"),
    [
        ({"values": np.full((6, 8), np.nan, np.float32)}, "not finite"),
        ({"values": np.ones((5, 8), np.float32)}, "6 tokens, not 5 rows"),
        ({"values": np.ones(8, np.float32)}, r"\[tokens, width\]"),
        ({"values": np.ones((6, 7), np.float32)}, "7 columns do not divide into 2 levels"),
        ({"tokens": 5}, "no merge size makes 5 tokens"),
        ({"tokens": 6.0}, "tokens must be"),
        ({"grid_thw": (1.0, 4.0, 6.0)}, "grid_thw must be"),
        ({"grid_thw": None}, "grid_thw must be"),
        ({"values": np.ones((6, 8), ">f4")}, "byte order"),
        ({"values": [[1.0] * 8] * 6}, "NumPy array, not a list"),
        ({"key": "../../etc"}, "64 hex digits"),
    ],
)
@pytest.mark.parametrize("hand_over", [lambda found: found.to_vllm_part(), lambda found: vllm_inputs([found])])
def test_what_would_end_the_llm_server_is_refused_before(
    hand_over: Callable[[Embedding], Any], spoiled: dict[str, Any], why: str
) -> None:
    with pytest.raises(InvalidEmbedding, match=why):
        hand_over(embedding(**spoiled))


def test_offline_input_joins_the_rows_and_keeps_the_order_of_keys() -> None:
    other = "cd" * 32
    found = vllm_inputs([embedding(), embedding(2.0, key=other)])
    image = found["multi_modal_data"]["image"]
    assert image["image_grid_thw"].tolist() == [[1, 4, 6], [1, 4, 6]]
    assert image["image_embeds"][:, 0].tolist() == [0.5] * 6 + [2.0] * 6
    assert found["multi_modal_uuids"] == {"image": [KEY, other]}


def test_embeddings_of_two_models_do_not_go_into_one_input() -> None:
    with pytest.raises(InvalidEmbedding, match="differ in width or dtype"):
        vllm_inputs([embedding(), embedding(values=np.ones((6, 4), ml_dtypes.bfloat16))])
    with pytest.raises(InvalidEmbedding, match="no embedding"):
        vllm_inputs([])


def picture(content: bytes) -> dict[str, Any]:
    url = "data:image/png;base64," + base64.b64encode(content).decode()
    return {"type": "image_url", "image_url": {"url": url, "detail": "high"}, "uuid": "chosen by somebody"}


@pytest.fixture
def server(build: Callable[..., bytes]) -> httpx.MockTransport:
    """Answers each image with rows filled with its first byte."""

    def answer(request: httpx.Request) -> httpx.Response:
        files = request.content.split(b"\r\n\r\n")[1:] if b"form-data" in request.content else [request.content]
        arrays = [np.full((2, 3), file[0], np.float32) for file in files]
        keys = [f"{file[0]:064x}" for file in files]
        return httpx.Response(200, headers={"Content-Type": MEDIA_TYPE}, content=build(arrays, keys=keys))

    return httpx.MockTransport(answer)


CHAT = [
    {"role": "system", "content": "look"},
    {"role": "user", "content": [picture(b"\x01"), {"type": "text", "text": "and"}, picture(b"\x02")]},
    {"role": "assistant", "content": None, "tool_calls": []},
    {"role": "user", "content": [{"type": "image_url", "image_url": picture(b"\x03")["image_url"]["url"]}]},
]


def fills(messages: list[dict[str, Any]]) -> list[float]:
    parts = [part for message in messages if isinstance(message["content"], list) for part in message["content"]]
    return [tensor_in(part)[0, 0].item() for part in parts if part["type"] == "image_embeds"]


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_pictures_in_messages_become_embeddings_in_their_places(kind: str, server: httpx.MockTransport) -> None:
    before = json.dumps(CHAT)
    if kind == "sync":
        with Client("http://host", transport=server) as client:
            found = vllm_messages(CHAT, client)
    else:
        async with AsyncClient("http://host", transport=server) as client:
            found = await vllm_messages_async(CHAT, client)
    assert fills(found) == [1, 2, 3]
    assert [message["role"] for message in found] == ["system", "user", "assistant", "user"]
    assert found[1]["content"][1] == {"type": "text", "text": "and"}
    assert found[1]["content"][0]["uuid"] == f"{1:064x}"
    assert (found[0], found[2]) == (CHAT[0], CHAT[2])
    assert json.dumps(CHAT) == before


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_messages_by_key_name_what_the_server_holds(kind: str) -> None:
    texts = {"model": "m", "dtype": "float32", "sha256": ["0" * 64] * 3, "keys": [f"{n:064x}" for n in range(3)]}
    counts = {"tokens": [6] * 3, "shapes": [[6, 8]] * 3, "usage": {"images": 3, "patches": 72, "tokens": 18}}
    said = {k: v if isinstance(v, str) else json.dumps(v) for k, v in {**texts, **counts}.items()}
    held = save({"grid_thw": np.array([[1, 4, 6]] * 3, np.int64)}, said)

    def answer(request: httpx.Request) -> httpx.Response:
        assert request.url.params["deliver"] == "hold"
        return httpx.Response(200, headers={"Content-Type": MEDIA_TYPE}, content=held)

    if kind == "sync":
        with Client("http://host", transport=httpx.MockTransport(answer)) as client:
            found = vllm_messages(CHAT, client, by_key=True)
    else:
        async with AsyncClient("http://host", transport=httpx.MockTransport(answer)) as client:
            found = await vllm_messages_async(CHAT, client, by_key=True)
    assert found[3]["content"] == [
        {"type": "image_embeds", "image_embeds": {"image_grid_thw": [1, 4, 6]}, "uuid": f"{2:064x}"}
    ]


@pytest.mark.parametrize("url", ["/etc/passwd", "file:///etc/passwd", "", None, 7])
def test_a_message_cannot_make_the_sdk_read_a_file(url: Any, server: httpx.MockTransport) -> None:
    messages = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]
    with Client("http://host", transport=server) as client, pytest.raises(ValueError, match=r"messages\[0\]"):
        vllm_messages(messages, client)


def test_messages_without_pictures_ask_nobody() -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        raise AssertionError("nothing to encode")

    with Client("http://host", transport=httpx.MockTransport(refuse)) as client:
        assert vllm_messages([{"role": "user", "content": "hello"}], client) == [{"role": "user", "content": "hello"}]
