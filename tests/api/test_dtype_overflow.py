"""Values that the dtype cannot hold: the fault of whoever chose it, a fault of the server's where the model did."""

from __future__ import annotations

import asyncio
import base64
import dataclasses

import httpx

from foveal.errors import DtypeOverflow
from tests.fakes import FakeService, picture, value_of

IMAGE = {"images": [base64.b64encode(picture()).decode()]}
WHY = "the embedding of this image has values larger than float16 holds; ask for dtype=bfloat16 or dtype=float32"


def overflows(fake: FakeService) -> None:
    fake.engine.spec = dataclasses.replace(fake.engine.spec, dtype="float16")
    fake.pool.error = DtypeOverflow(WHY)


async def test_who_chose_the_dtype_is_told_which_to_choose(client: httpx.AsyncClient, fake: FakeService) -> None:
    overflows(fake)
    answer = await client.post("/encode?dtype=float16", json=IMAGE)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["type"]) == (422, "dtype_overflow", "invalid_request_error")
    assert (error["retryable"], error["param"], error["message"]) == (False, "images[0]", WHY)
    assert fake.metrics.outcomes["rejected"]._value.get() == 1 and fake.metrics.outcomes["failed"]._value.get() == 0


async def test_who_took_the_models_dtype_is_not_blamed(client: httpx.AsyncClient, fake: FakeService) -> None:
    overflows(fake)
    for body in (IMAGE, IMAGE | {"dtype": None}):
        answer = await client.post("/encode", json=body)
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["param"]) == (500, "internal", "images[0]")
        assert error["message"] == f"{WHY} (float16 is this model's own)"


async def test_those_who_share_one_failed_encode_are_told_apart_and_nothing_is_kept(
    client: httpx.AsyncClient, fake: FakeService
) -> None:
    overflows(fake)
    fake.pool.gate.clear()
    asked = [asyncio.create_task(client.post(f"/encode{query}", json=IMAGE)) for query in ("?dtype=float16", "")]
    while fake.pool.waiting < 1 or value_of(fake.metrics.inflight_items) < 1:
        await asyncio.sleep(0)
    for _ in range(50):  # the second finds the first's encode under way
        await asyncio.sleep(0)
    fake.pool.gate.set()
    assert [answer.status_code for answer in await asyncio.gather(*asked)] == [422, 500]
    assert fake.engine.cache.shown()["entries"] == 0
    fake.pool.error = None
    again = await client.post("/encode?dtype=float32", json=IMAGE)
    assert again.status_code == 200 and not again.json()["data"][0]["cached"]
