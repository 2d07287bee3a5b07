"""POST /encode over fakes: bodies, options, answers, order, cache, errors."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json

import httpx
import numpy as np
import pytest

from foveal.api.context import Server
from foveal.types import Output
from tests.fakes import NUMPY, FakeService, expected, picture, value_of

OCTETS = {"Content-Type": "application/octet-stream"}
BINARY = {"Accept": "application/vnd.foveal.safetensors"}


def values_of(row: dict, output: Output) -> np.ndarray:
    return np.frombuffer(base64.b64decode(row["embedding"]), NUMPY[output.dtype]).reshape(row["shape"])


async def test_a_raw_body_gives_the_embedding_of_its_bytes(client: httpx.AsyncClient) -> None:
    data = picture(300, 200)
    answer = await client.post("/encode", content=data, headers=OCTETS)
    assert answer.status_code == 200, answer.text
    row = answer.json()["data"][0]
    assert row["grid_thw"] == [1, 14, 20] and row["tokens"] == 70 and row["image_size"] == [300, 200]
    assert row["sha256"] == hashlib.sha256(data).hexdigest() and row["cached"] is False
    output = Output("tokens", "float32")
    np.testing.assert_array_equal(values_of(row, output), expected(data, output, 70))
    assert answer.json()["usage"] == {"images": 1, "patches": 280, "tokens": 70}


async def test_all_forms_of_json_items_are_read_in_order(client: httpx.AsyncClient) -> None:
    shots = [picture(text=str(i)) for i in range(4)]
    texts = [base64.b64encode(shot).decode() for shot in shots]
    images = [
        texts[0],
        {"url": f"data:image/png;base64,{texts[1]}"},
        {"data": texts[2]},
        {"type": "image_url", "image_url": {"url": f"data:;base64,{texts[3]}"}},
    ]
    answer = await client.post("/encode", json={"images": images})
    assert [row["sha256"] for row in answer.json()["data"]] == [hashlib.sha256(s).hexdigest() for s in shots]


async def test_multipart_files_are_images_and_other_fields_are_options(client: httpx.AsyncClient) -> None:
    files = [("a", ("x", picture(text="1"))), ("b", ("y", picture(text="2"))), ("dtype", (None, "float16"))]
    answer = await client.post("/encode", files=files)
    rows = answer.json()["data"]
    assert [row["sha256"] for row in rows] == [hashlib.sha256(picture(text=t)).hexdigest() for t in "12"]
    assert rows[0]["dtype"] == "float16"


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("kind", ["tokens", "pooled"])
async def test_numbers_base64_and_safetensors_hold_the_same_bits(
    client: httpx.AsyncClient, dtype: str, kind: str
) -> None:
    options = {"dtype": dtype, "output": kind}
    plain, numbers, binary = [
        await client.post("/encode", content=picture(), headers=OCTETS | more, params=options | extra)
        for more, extra in (({}, {}), ({}, {"encoding_format": "float"}), (BINARY, {}))
    ]
    output = Output(kind, dtype)  # type: ignore[arg-type]
    wanted = values_of(plain.json()["data"][0], output)
    got = np.array(numbers.json()["data"][0]["embedding"], np.float32).astype(NUMPY[dtype])
    assert got.tobytes() == wanted.tobytes()
    size = int.from_bytes(binary.content[:8], "little")
    header = json.loads(binary.content[8 : 8 + size])
    start, end = header["image.0"]["data_offsets"]
    assert binary.content[8 + size :][start:end] == wanted.tobytes()
    assert header["image.0"]["shape"] == list(wanted.shape)
    assert all(isinstance(value, str) for value in header["__metadata__"].values())


async def test_the_second_time_comes_from_the_cache_bit_for_bit(client: httpx.AsyncClient, fake: FakeService) -> None:
    answers = [(await client.post("/encode", content=picture(), headers=OCTETS)).json()["data"][0] for _ in range(2)]
    assert [row["cached"] for row in answers] == [False, True]
    assert answers[0]["embedding"] == answers[1]["embedding"]
    assert len(fake.pool.encoded) == 1


@pytest.mark.parametrize(
    "options",
    [{"background": "black"}, {"dtype": "float16"}, {"min_pixels": 400_000}, {"output": "pooled"}],
    ids=lambda o: next(iter(o)),
)
async def test_other_options_are_another_cache_entry(client: httpx.AsyncClient, options: dict) -> None:
    await client.post("/encode", content=picture(), headers=OCTETS)
    again = await client.post("/encode", content=picture(), headers=OCTETS, params=options)
    assert again.json()["data"][0]["cached"] is False


async def test_equal_bytes_in_flight_are_encoded_once(client: httpx.AsyncClient, fake: FakeService) -> None:
    fake.pool.gate.clear()
    calls = [asyncio.create_task(client.post("/encode", content=picture(), headers=OCTETS)) for _ in range(8)]
    while not fake.pool.waiting:
        await asyncio.sleep(0)
    fake.pool.gate.set()
    answers = [call.json()["data"][0]["embedding"] for call in await asyncio.gather(*calls)]
    assert len(set(answers)) == 1 and len(fake.pool.encoded) == 1
    joined = fake.metrics.images.labels("coalesced")._value.get() + fake.metrics.images.labels("cache_hit")._value.get()
    assert joined == 7


async def test_one_bad_image_names_itself_and_leaves_others_alone(client: httpx.AsyncClient) -> None:
    good, bad = (base64.b64encode(data).decode() for data in (picture(), b"FAKE BAD"))
    mixed, alone = await asyncio.gather(
        client.post("/encode", json={"images": [good, bad]}), client.post("/encode", json={"images": [good]})
    )
    assert mixed.status_code == 422 and mixed.json()["error"]["param"] == "images[1]"
    assert alone.status_code == 200


async def test_callers_who_joined_a_failed_flight_get_their_own_param(
    client: httpx.AsyncClient, fake: FakeService
) -> None:
    bad, other = (base64.b64encode(data).decode() for data in (b"FAKE BAD", picture()))
    first, second = await asyncio.gather(
        client.post("/encode", json={"images": [bad]}), client.post("/encode", json={"images": [other, other, bad]})
    )
    assert [a.json()["error"]["param"] for a in (first, second)] == ["images[0]", "images[2]"]


async def test_a_deadline_is_the_callers_own(client: httpx.AsyncClient, fake: FakeService) -> None:
    fake.pool.gate.clear()
    patient = asyncio.create_task(client.post("/encode", content=picture(), headers=OCTETS))
    while not fake.pool.waiting:
        await asyncio.sleep(0)
    hurried = await client.post("/encode", content=picture(), headers=OCTETS | {"X-Request-Timeout-Ms": "5"})
    assert hurried.status_code == 504 and hurried.json()["error"]["code"] == "deadline_exceeded"
    fake.pool.gate.set()
    assert (await patient).status_code == 200


async def test_nothing_is_left_in_flight_after_any_outcome(client: httpx.AsyncClient, fake: FakeService) -> None:
    await client.post("/encode", content=b"FAKE BAD", headers=OCTETS)
    await client.post("/encode", content=picture(), headers=OCTETS)
    fake.pool.gate.clear()
    await client.post("/encode", content=picture(text="late"), headers=OCTETS | {"X-Request-Timeout-Ms": "5"})
    for _ in range(4):  # turns of the loop in which what was cancelled ends
        await asyncio.sleep(0)
    for gauge in (fake.metrics.inflight_items, fake.metrics.inflight_bytes):
        assert value_of(gauge) == 0
    assert fake.pool.waiting == 0
    assert fake.arenas["images"].used == fake.arenas["rows"].used == 0


async def test_too_many_tokens_are_refused_or_scaled_down(client: httpx.AsyncClient, server: Server) -> None:
    assert server.service is not None
    server.service.engine.max_image_tokens = 160
    data = picture(1400, 1000)
    refused = await client.post("/encode", content=data, headers=OCTETS)
    assert refused.status_code == 413 and "--max-image-tokens" in refused.json()["error"]["message"]
    scaled = await client.post("/encode", content=data, headers=OCTETS, params={"oversize": "downscale"})
    assert 100 <= scaled.json()["data"][0]["tokens"] <= 160


async def test_more_images_than_allowed_are_refused_by_every_intake(client: httpx.AsyncClient) -> None:
    text = base64.b64encode(picture()).decode()
    for answer in (
        await client.post("/encode", json={"images": [text] * 5}),
        await client.post("/encode", files=[("i", ("n", picture()))] * 5),
    ):
        assert answer.status_code == 413 and "4" in answer.json()["error"]["message"]


async def test_a_body_over_the_limit_is_refused_by_its_length_or_as_it_arrives(client: httpx.AsyncClient) -> None:
    async def endless():
        while True:
            yield bytes(1 << 16)

    for content in (bytes((1 << 20) + 1), endless()):
        answer = await client.post("/encode", content=content, headers=OCTETS)
        assert answer.status_code == 413 and "--max-body-bytes" in answer.json()["error"]["message"]


async def test_every_answer_carries_an_id_and_its_stages(client: httpx.AsyncClient) -> None:
    answer = await client.post("/encode", content=picture(), headers=OCTETS | {"X-Request-ID": "mine"})
    assert answer.headers["x-request-id"] == "mine"
    stages = {part.split(";")[0] for part in answer.headers["server-timing"].split(", ")}
    assert {"fetch", "queue", "prep", "encode", "total"} <= stages
    made = await client.post("/encode", content=b"?", headers=OCTETS | {"X-Request-ID": "x" * 4000})
    assert made.headers["x-request-id"] == made.json()["error"]["request_id"] != "x" * 4000


async def test_a_bug_is_answered_500_without_its_inside(client: httpx.AsyncClient, fake: FakeService) -> None:
    async def broken(image):
        raise RuntimeError("secret inside")

    fake.prep.probe = broken  # type: ignore[method-assign]
    answer = await client.post("/encode", content=picture(), headers=OCTETS)
    assert answer.status_code == 500 and answer.json()["error"]["code"] == "internal"
    assert "secret" not in answer.text
