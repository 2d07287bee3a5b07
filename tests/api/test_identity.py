"""The same picture is the same picture, whichever way it comes: one key, one encoding, the same bytes out."""

from __future__ import annotations

import base64
from typing import Any
from urllib.parse import quote

import httpx
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from foveal.api.app import create_app
from foveal.api.context import Server
from foveal.settings import Settings
from tests.fakes import FakeService, fake_service, picture

PICTURE = picture(128, 96) + bytes(range(256))
TEXT = base64.b64encode(PICTURE).decode()
SAFE = base64.urlsafe_b64encode(PICTURE).decode()
ESCAPED = quote(PICTURE, safe="")
OCTETS = {"Content-Type": "application/octet-stream"}

STRINGS = {
    "base64": TEXT,
    "without padding": TEXT.rstrip("="),
    "url-safe": SAFE,
    "url-safe without padding": SAFE.rstrip("="),
    "in lines": "\r\n".join(TEXT[i : i + 20] for i in range(0, len(TEXT), 20)) + "\n",
    "data-URI": f"data:image/png;base64,{TEXT}",
    "data-URI of another type": f"data:application/pdf;base64,{TEXT}",
    "data-URI without a type": f"data:;base64,{TEXT}",
    "data-URI with parameters": f"data:image/png;charset=utf-8;name=a.png;base64,{TEXT}",
    "data-URI in capitals": f"DATA:IMAGE/PNG;BASE64,{TEXT}",
    "data-URI with escapes": f"data:image/png;base64,{quote(TEXT, safe='')}",
    "data-URI url-safe": f"data:image/png;base64,{SAFE.rstrip('=')}",
    "data-URI in lines": f"data:image/png;base64,{TEXT[:30]}\n{TEXT[30:]}",
    "data-URI of escaped bytes": f"data:image/png,{ESCAPED}",
    "data-URI of escaped bytes without a type": f"data:,{ESCAPED}",
}
FORMS = {
    "text": lambda s: s,
    "url": lambda s: {"url": s},
    "data": lambda s: {"data": s},
    "image_url": lambda s: {"type": "image_url", "image_url": {"url": s}},
    "image_url as text": lambda s: {"type": "image_url", "image_url": s},
}
FILES = {
    "a file": ("f", "a.png", "image/png"),
    "a file of another name and type": ("anything", "paper.pdf", "application/pdf"),
    "a file without a name": ("f", "", "application/octet-stream"),
}


def seen(answer: httpx.Response) -> tuple[Any, ...]:
    """What identifies an answer: hash, embedding, grid, size."""
    assert answer.status_code == 200, answer.text
    (found,) = answer.json()["data"]
    return found["sha256"], found["embedding"], tuple(found["grid_thw"]), tuple(found["image_size"])


@pytest.fixture
async def first(client: httpx.AsyncClient) -> tuple[Any, ...]:
    return seen(await client.post("/encode", content=PICTURE, headers=OCTETS))


def was_encoded_once(fake: FakeService) -> bool:
    return fake.pool.encoded == [PICTURE] and fake.prep.probes == 1


@pytest.mark.parametrize("label", ["image/png", "image/jpeg", "application/octet-stream", "image/x-anything", ""])
async def test_the_label_of_raw_bytes_changes_nothing(client, fake, first, label: str) -> None:
    assert seen(await client.post("/encode", content=PICTURE, headers={"Content-Type": label})) == first
    assert was_encoded_once(fake)


@pytest.mark.parametrize("file", FILES)
async def test_a_form_gives_the_picture_of_raw_bytes(client, fake, first, file: str) -> None:
    field, name, kind = FILES[file]
    body = (
        f'--b\r\nContent-Disposition: form-data; name="{field}"; filename="{name}"\r\nContent-Type: {kind}\r\n\r\n'
    ).encode() + b"%b\r\n--b--\r\n" % PICTURE
    headers = {"Content-Type": "multipart/form-data; boundary=b"}
    assert seen(await client.post("/encode", content=body, headers=headers)) == first
    assert was_encoded_once(fake)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("spelling", STRINGS)
async def test_every_spelling_in_json_gives_the_picture_of_raw_bytes(client, fake, first, spelling, form) -> None:
    assert seen(await client.post("/encode", json={"images": [FORMS[form](STRINGS[spelling])]})) == first
    assert was_encoded_once(fake)


async def test_all_spellings_in_one_request_are_one_encoding(client, fake) -> None:
    for start in range(0, len(STRINGS), 4):
        answer = await client.post("/encode", json={"images": list(STRINGS.values())[start : start + 4]})
        assert len({found["embedding"] for found in answer.json()["data"]}) == 1
    assert was_encoded_once(fake)


async def test_openais_route_gives_the_same_numbers_for_every_spelling(client, fake) -> None:
    raw = await client.post("/encode?output=pooled&normalize=true&dtype=float32", content=PICTURE, headers=OCTETS)
    numbers = np.frombuffer(base64.b64decode(raw.json()["data"][0]["embedding"]), np.float32)
    for spelling in STRINGS.values():
        answer = await client.post("/v1/embeddings", json={"input": [spelling], "model": raw.json()["model"]})
        assert np.allclose(answer.json()["data"][0]["embedding"], numbers)
    assert was_encoded_once(fake)


async def test_options_that_decide_pixels_or_numbers_are_another_key(client, fake, first) -> None:
    for options in ("background=black", "max_pixels=70000", "output=pooled", "dtype=float16"):
        assert seen(await client.post(f"/encode?{options}", content=PICTURE, headers=OCTETS))[0] == first[0]
    assert len(fake.pool.encoded) == 5


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tail=st.binary(max_size=60), width=st.integers(1, 30), url_safe=st.booleans(), padded=st.booleans())
async def test_any_bytes_by_any_way_are_the_same_bytes(tail: bytes, width: int, url_safe: bool, padded: bool) -> None:
    fake = fake_service()
    data = picture(64, 64) + tail
    text = (base64.urlsafe_b64encode if url_safe else base64.b64encode)(data).decode()
    text = text if padded else text.rstrip("=")
    wrapped = "\n".join(text[i : i + width] for i in range(0, len(text), width))
    app = create_app(Server(Settings(), fake.metrics, service=fake.service))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://foveal") as client:
        ways = [wrapped, f"data:;base64,{quote(wrapped)}", f"data:image/gif,{quote(data)}"]
        json = await client.post("/encode", json={"images": ways})
        raw = await client.post("/encode", content=data, headers=OCTETS)
    assert {found["sha256"] for found in json.json()["data"]} == {raw.json()["data"][0]["sha256"]}
    assert fake.pool.encoded == [data]
