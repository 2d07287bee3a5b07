"""A full server says no before it does anything, and yes to whom it costs nothing."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx
import pytest
from starlette.requests import Request

from foveal.api import serving
from foveal.api.body import read_body
from foveal.engine.speed import READ_ALL_THE_SAME
from tests.fakes import FakeService, fake_service, picture

OCTETS = {"Content-Type": "application/octet-stream"}
KNOWN, WAITING, NEW = picture(text="known"), picture(text="waiting"), picture(text="new")


@pytest.fixture
async def fake() -> FakeService:
    return fake_service(max_tokens=70)  # such a picture has 64


@pytest.fixture
async def waiting(client: httpx.AsyncClient, fake: FakeService) -> AsyncIterator[asyncio.Task[httpx.Response]]:
    """A call that fills the server; `known` is in the cache."""
    assert (await client.post("/encode", content=KNOWN, headers=OCTETS)).status_code == 200
    fake.pool.gate.clear()
    call = asyncio.create_task(client.post("/encode", content=WAITING, headers=OCTETS))
    while not fake.pool.waiting:
        await asyncio.sleep(0)
    yield call
    fake.pool.gate.set()
    assert (await call).status_code == 200


@pytest.mark.parametrize("path", ["/encode", "/v1/embeddings"])
async def test_a_full_server_refuses_what_is_new_without_reading_it(client, fake, waiting, path: str) -> None:
    probes = fake.prep.probes
    body = {"images": [_text(KNOWN), _text(NEW)]} if path == "/encode" else {"input": [_text(NEW)]}
    answer = await client.post(path, json=body)
    error = answer.json()["error"]
    assert answer.status_code == 503 and error["code"] == "overloaded" and error["param"]
    assert int(answer.headers["retry-after"]) >= 1
    assert fake.prep.probes == probes
    assert fake.metrics.images.labels("rejected")._value.get() == 1


async def test_what_is_cached_or_under_way_is_answered_while_the_server_is_full(client, fake, waiting) -> None:
    known = await client.post("/encode", content=KNOWN, headers=OCTETS)
    assert known.status_code == 200 and known.json()["data"][0]["cached"]
    joins = asyncio.create_task(client.post("/encode", json={"images": [_text(WAITING), _text(KNOWN)]}))
    for _ in range(20):
        await asyncio.sleep(0)
    fake.pool.gate.set()
    assert (await joins).status_code == 200
    assert fake.pool.encoded == [KNOWN, WAITING]


async def test_of_many_who_come_at_once_no_more_are_read_than_fit(client, fake, waiting) -> None:
    fake.pool.gate.set()
    await waiting
    fake.pool.gate.clear()
    probes = fake.prep.probes
    calls = [
        asyncio.create_task(client.post("/encode", content=picture(text=str(i)), headers=OCTETS)) for i in range(20)
    ]
    while sum(call.done() for call in calls) < 19 or not fake.pool.waiting:
        await asyncio.sleep(0)
    assert fake.prep.probes == probes + 1
    fake.pool.gate.set()
    assert sorted(answer.status_code for answer in await asyncio.gather(*calls)) == [200] + [503] * 19


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


async def _refused(client: httpx.AsyncClient, number: int, path: str = "/encode") -> httpx.Response:
    answer = await client.post(path, content=picture(text=str(number)), headers=OCTETS)
    assert answer.status_code == 503 and answer.json()["error"]["code"] == "overloaded"
    return answer


@pytest.mark.parametrize("path", ["/encode", "/v1/embeddings"])
async def test_where_hardly_anything_is_known_a_full_server_refuses_before_it_reads(
    client, server, fake, waiting, path: str, monkeypatch
) -> None:
    reads = []
    monkeypatch.setattr(serving, "read_body", _counting(reads))
    for i in range(200):
        await _refused(client, i)
    assert 0 < len(reads) < 100  # until that was learned
    reads.clear()
    unread = {"content": b"no JSON", "headers": {"Content-Type": "application/json"}}
    answers = [await client.post(path, **unread) for _ in range(2 * READ_ALL_THE_SAME)]
    assert [a.status_code for a in answers].count(503) == len(answers) - len(reads)
    assert len(reads) == 2  # every so manieth is read in any case
    assert all(int(a.headers["retry-after"]) >= 1 for a in answers if a.status_code == 503)


async def test_where_pictures_come_again_a_full_server_goes_on_reading(client, fake, waiting) -> None:
    for i in range(100):
        if i % 4:
            await _refused(client, i)
        else:
            assert (await client.post("/encode", content=KNOWN, headers=OCTETS)).json()["data"][0]["cached"]


def _counting(reads: list[str]) -> Callable[..., Awaitable[bytes]]:
    async def read(request: Request, *args: Any) -> bytes:
        reads.append(request.url.path)
        return await read_body(request, *args)

    return read
