"""Requests that name images by URL, through the whole api in process, over a network in memory."""

from __future__ import annotations

import asyncio
import base64
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass

import httpx
import pytest

from foveal.api.app import create_app
from foveal.api.context import Server
from foveal.settings import Settings
from tests.fakes import FakeService, fake_service, picture
from tests.unit.fetch.network import HANG, OTHER, PUBLIC, Network, answer, fetcher, names

RED, BLUE = picture(96, 64, "red"), picture(64, 64, "blue")
SENT = base64.b64encode(picture(32, 32, "sent")).decode()


@dataclass
class Api:
    """A server over fakes, and a caller of it."""

    client: httpx.AsyncClient
    network: Network
    fake: FakeService
    server: Server

    async def encode(self, *items: object, **headers: str) -> httpx.Response:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.client.post("/encode", json={"images": list(items)}, headers=sent)

    def metric(self, name: str) -> float:
        text = {s.name: s.value for family in self.fake.metrics.registry.collect() for s in family.samples}
        return text[name]

    def fetches(self) -> float:
        return self.fake.metrics.registry.get_sample_value("foveal_stage_seconds_count", {"stage": "fetch"}) or 0.0


@pytest.fixture
async def api() -> AsyncIterator[Api]:
    network = Network({PUBLIC: [answer(RED)], OTHER: [answer(BLUE)]})
    fake = fake_service()
    server = Server(Settings(max_body_bytes=1 << 20), fake.metrics, service=fake.service)
    server.fetcher = fetcher(network, names(a_example=PUBLIC, b_example=OTHER, inside_example="10.0.0.1"))
    transport = httpx.ASGITransport(create_app(server))
    async with httpx.AsyncClient(transport=transport, base_url="http://foveal") as client:
        yield Api(client, network, fake, server)
    assert network.num_open == 0 and fake.metrics.registry.get_sample_value("foveal_inflight_bytes") == 0


def refused(response: httpx.Response, status: int, code: str, param: str) -> dict:
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (status, code, param), error
    return error


async def test_urls_and_bytes_are_answered_in_request_order(api: Api) -> None:
    found = await api.encode("http://a.example/1", SENT, {"url": "https://b.example/2"}, "http://a.example/1")
    assert found.status_code == 200, found.text
    direct = await api.encode(*(base64.b64encode(data).decode() for data in (RED, b"FAKE 32x32 sent", BLUE, RED)))
    assert [e["sha256"] for e in found.json()["data"]] == [e["sha256"] for e in direct.json()["data"]]
    assert [e["embedding"] for e in found.json()["data"]] == [e["embedding"] for e in direct.json()["data"]]


async def test_every_form_of_item_may_name_a_url(api: Api) -> None:
    url = "HTTP://a.example/1"
    for item in (url, {"url": url}, {"type": "image_url", "image_url": {"url": url}}, {"data": url}):
        assert (await api.encode(item)).status_code == 200


async def test_the_openai_route_fetches_too(api: Api) -> None:
    found = await api.client.post("/v1/embeddings", json={"input": ["http://a.example/1", SENT]})
    assert found.status_code == 200 and len(found.json()["data"]) == 2
    bad = await api.client.post("/v1/embeddings", json={"input": [SENT, "http://inside.example/"]})
    refused(bad, 403, "url_forbidden", "input[1]")


@pytest.mark.parametrize(
    ("item", "status", "code"),
    [
        ("file:///etc/hostname", 403, "url_forbidden"),
        ("http://127.0.0.1/", 403, "url_forbidden"),
        ("http://inside.example/", 403, "url_forbidden"),
        ("http://nowhere.example/", 424, "url_failed"),
        ("http://[::1", 400, "invalid_request"),
        ("data:text/html,hello", 400, "bad_base64"),
    ],
)
async def test_a_url_that_fails_is_named_and_touches_nobody_else(api: Api, item: str, status: int, code: str) -> None:
    refused(await api.encode("http://a.example/1", item), status, code, "images[1]")
    assert (await api.encode("http://a.example/1")).status_code == 200


async def test_forbidden_urls_are_refused_before_any_other_is_fetched(api: Api) -> None:
    refused(await api.encode("http://a.example/1", "http://192.168.0.1/"), 403, "url_forbidden", "images[1]")
    assert api.network.connects == []


async def test_whether_a_retry_may_help_is_told(api: Api) -> None:
    for status, may_pass in ((503, True), (404, False)):
        api.network.servers[PUBLIC] = [answer(b"", status)]
        error = refused(await api.encode("http://a.example/1"), 424, "url_failed", "images[0]")
        assert error["retryable"] is may_pass


async def test_the_bytes_decide_whatever_the_server_calls_them(api: Api) -> None:
    api.network.servers[PUBLIC] = [answer(RED, 200, "Content-Type: text/html")]
    assert (await api.encode("http://a.example/1")).status_code == 200
    api.network.servers[PUBLIC] = [answer(b"<html>", 200, "Content-Type: image/png")]
    refused(await api.encode(SENT, "http://a.example/1"), 415, "unsupported_type", "images[1]")


async def test_all_images_of_a_request_share_one_limit(api: Api) -> None:
    api.network.servers[PUBLIC] = [answer(bytes(400_000))]
    error = (await api.encode(*["http://a.example/1"] * 3)).json()["error"]
    assert error["code"] == "too_large" and "--max-body-bytes" in error["message"]
    assert error["param"].startswith("images[")


async def test_fetched_bytes_are_held_until_the_answer_is_sent(api: Api) -> None:
    api.fake.pool.gate.clear()
    task = asyncio.create_task(api.encode("http://a.example/" + "x" * 9))
    while not api.fake.pool.waiting:
        await asyncio.sleep(0)
    body = len(b'{"images":["http://a.example/xxxxxxxxx"]}')
    assert api.metric("foveal_inflight_bytes") >= body + len(RED)
    api.fake.pool.gate.set()
    assert (await task).status_code == 200


async def test_a_server_full_of_bytes_says_so_while_it_fetches(api: Api) -> None:
    api.fake.engine.gate.max_bytes = 1000
    api.network.servers[PUBLIC] = [answer(bytes(2000))]
    assert (await api.encode("http://a.example/1")).json()["error"]["code"] == "overloaded"


async def test_the_fetch_stage_is_timed_once_a_request(api: Api) -> None:
    before = api.fetches()
    found = await api.encode("http://a.example/1", "http://b.example/1")
    assert re.match(r"fetch;dur=\d+\.\d+, ", found.headers["server-timing"])
    assert api.fetches() == before + 1
    await api.encode(SENT)
    assert api.fetches() == before + 2
    await api.encode("http://nowhere.example/1")
    assert api.fetches() == before + 3


async def test_the_deadline_of_the_request_ends_its_fetches(api: Api) -> None:
    api.network.servers[PUBLIC] = [[HANG]]
    late = await api.encode("http://a.example/1", X_Request_Timeout_Ms="20")
    assert (late.status_code, late.json()["error"]["code"]) == (504, "deadline_exceeded")


async def test_the_first_failure_ends_the_other_fetches(api: Api) -> None:
    api.network.servers[PUBLIC] = [[HANG]]
    refused(await api.encode("http://a.example/1", "http://nowhere.example/"), 424, "url_failed", "images[1]")


async def test_fetches_that_hang_hold_no_place_of_the_encoder(api: Api) -> None:
    api.network.servers[PUBLIC] = [[HANG]]
    stuck = asyncio.create_task(api.encode("http://a.example/1"))
    await api.network.hanging.wait()
    assert api.metric("foveal_inflight_items") == 0
    assert (await api.encode(SENT, "http://b.example/1")).status_code == 200
    stuck.cancel()
    await asyncio.wait([stuck])


async def test_without_the_setting_urls_are_refused_with_its_name(api: Api) -> None:
    api.server.fetcher = None
    error = refused(await api.encode(SENT, "http://a.example/1"), 403, "url_forbidden", "images[1]")
    assert "--allow-urls" in error["message"]
