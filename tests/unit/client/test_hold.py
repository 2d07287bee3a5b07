"""`hold`: the server keeps the rows; what it says of them must agree."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest
from safetensors.numpy import save

from foveal_client import GridTHW, Held, InvalidResponse, NotFound, Usage

from .conftest import MEDIA_TYPE, Twin

KEYS = ["ab" * 32, "cd" * 32]


def answer_of(rows: bool = False, **changes: object) -> httpx.Response:
    said: dict[str, object] = {
        "model": "m",
        "dtype": "bfloat16",
        "sha256": ["00" * 32, "11" * 32],
        "keys": KEYS,
        "levels": [],
        "usage": {"images": 2, "patches": 24, "tokens": 6},
        "tokens": [4, 2],
        "shapes": [[4, 8], [2, 8]],
    }
    texts = {k: v if isinstance(v, str) else json.dumps(v) for k, v in (said | changes).items()}
    tensors: dict[str, Any] = {"grid_thw": np.array([[1, 4, 4], [1, 2, 4]], np.int64)}
    if rows:
        tensors["image.0"] = np.zeros((4, 8), np.float32)
    return httpx.Response(
        200, headers={"Content-Type": MEDIA_TYPE, "X-Request-ID": "r-1"}, content=save(tensors, texts)
    )


async def test_held_images_come_in_order_without_rows(twin: Twin) -> None:
    asked: list[httpx.Request] = []

    def handler(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        return answer_of()

    first, second = await twin("hold", handler, [b"one", b"two"], dtype="bfloat16")
    usage = Usage(2, 24, 6)
    assert first == Held(KEYS[0], GridTHW(1, 4, 4), 4, (4, 8), "bfloat16", "m", "00" * 32, "r-1", usage)
    assert (second.key, second.shape) == (KEYS[1], (2, 8))
    assert dict(asked[0].url.params) == {"dtype": "bfloat16", "deliver": "hold"}


async def test_a_url_is_held_too(twin: Twin) -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        assert json.loads(request.content)["deliver"] == "hold"
        return answer_of()

    await twin("hold", handler, ["https://example.com/a.png", b"two"])


async def test_encode_cannot_be_talked_into_holding(twin: Twin) -> None:
    with pytest.raises(TypeError, match="deliver"):
        await twin("encode", lambda request: answer_of(), b"one", deliver="hold")


async def test_a_refusal_is_an_error_as_of_encode(twin: Twin) -> None:
    body = {"error": {"code": "not_found", "message": "because", "retryable": False}}
    with pytest.raises(NotFound):
        await twin("hold", lambda request: httpx.Response(404, json=body), b"one")


def wrong_answers() -> Iterator[tuple[httpx.Response, str]]:
    yield answer_of(rows=True), "rows should be held"
    yield answer_of(keys=["ab" * 32]), "keys.*1 entries for 2"
    yield answer_of(keys=["ab" * 32, "../" + "c" * 61]), "64 hex digits"
    yield answer_of(shapes=[[4, 8], [3, 8]]), "2 tokens.*3, 8"
    yield answer_of(shapes=[[4, 8], [2]]), "cannot have the shape"
    yield answer_of(shapes=[[4, 8], [2, 0]]), "cannot have the shape"
    yield answer_of(dtype="int64"), "dtype is 'int64'"
    yield httpx.Response(200, json={}), "expected application/vnd.foveal.safetensors"


async def test_what_does_not_agree_is_refused(twin: Twin) -> None:
    for answer, words in wrong_answers():
        with pytest.raises(InvalidResponse, match=words):
            await twin("hold", lambda request, answer=answer: answer, [b"one", b"two"])
