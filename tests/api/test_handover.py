"""deliver=hold and /embeddings over fakes: what is promised is there, once, and the same bits as an answer's."""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import safetensors

from foveal.api.app import create_app
from foveal.api.context import Server
from foveal.handover.folder import FILE
from foveal.handover.promises import Promises
from foveal.handover.service import Handover
from foveal.handover.storage import SharedStorage
from foveal.settings import Settings
from foveal.types import Output
from tests.fakes import NUMPY, FakeService, expected, fake_service, picture, value_of

OCTETS = {"Content-Type": "application/octet-stream"}
BINARY = {"Accept": "application/vnd.foveal.safetensors"}
HOLD = {"deliver": "hold"}


@pytest.fixture
async def fake() -> FakeService:
    """Without an encoder cache: what is found was promised."""
    return fake_service(cache_bytes=0)


def count(fake: FakeService, outcome: str) -> float:
    return fake.metrics.handover.labels(outcome)._value.get()


async def hold(client: httpx.AsyncClient, data: bytes, **options: str) -> dict[str, Any]:
    answer = await client.post("/encode", content=data, headers=OCTETS, params=HOLD | options)
    assert answer.status_code == 200, answer.text
    return answer.json()["data"][0]


def tensors_of(content: bytes) -> dict[str, Any]:
    return dict(safetensors.deserialize(content))


async def test_a_held_image_is_answered_without_rows_and_fetched_once(
    client: httpx.AsyncClient, fake: FakeService
) -> None:
    row = await hold(client, data := picture(300, 200))
    assert row["embedding"] is None and row["tokens"] == 70
    fetched = await client.get(f"/embeddings/{row['key']}")
    assert fetched.headers["content-type"] == "application/vnd.foveal.safetensors"
    assert int(fetched.headers["content-length"]) == len(fetched.content)
    tensors = tensors_of(fetched.content)
    assert bytes(tensors["ec_cache"]["data"]) == expected(data, Output("tokens", "float32"), 70).tobytes()
    assert tensors["ec_cache"]["shape"] == row["shape"]
    assert np.frombuffer(tensors["grid_thw"]["data"], "<i8").tolist() == row["grid_thw"]
    again = await client.get(f"/embeddings/{row['key']}")
    assert again.status_code == 404 and again.json()["error"]["code"] == "not_found"
    assert "deliver=hold" in again.json()["error"]["message"]
    assert [count(fake, outcome) for outcome in ("promised", "fetched", "missed")] == [1, 1, 1]
    assert fake.metrics.handover_bytes._value.get() == 0


async def test_metadata_says_what_the_rows_are(client: httpx.AsyncClient, tmp_path: Path) -> None:
    row = await hold(client, picture(), dtype="bfloat16")
    path = tmp_path / "file"
    path.write_bytes((await client.get(f"/embeddings/{row['key']}")).content)
    with safetensors.safe_open(path, "numpy") as file:
        found = file.metadata()
    assert {name: found[name] for name in ("model", "dtype", "key", "content_key", "sha256")} == {
        "model": "builtin:tiny",
        "dtype": "bfloat16",
        "key": row["key"],
        "content_key": row["key"],
        "sha256": hashlib.sha256(picture()).hexdigest(),
    }
    assert (found["tokens"], found["grid"]) == (str(row["tokens"]), str(row["grid_thw"]).replace(" ", ""))


async def test_the_same_image_has_one_key_however_it_is_asked_for(client: httpx.AsyncClient) -> None:
    row = await hold(client, picture())
    plain = (await client.post("/encode", content=picture(), headers=OCTETS)).json()["data"][0]
    other = (await client.post("/encode", content=picture(), headers=OCTETS, params={"dtype": "float16"})).json()
    assert plain["key"] == row["key"] != other["data"][0]["key"]


async def test_a_binary_answer_names_keys_and_shapes_and_carries_no_rows(client: httpx.AsyncClient) -> None:
    files = [("images", ("a", picture(text="1"))), ("images", ("b", picture(300, 200)))]
    answer = await client.post("/encode", files=files, params=HOLD, headers=BINARY)
    tensors = tensors_of(answer.content)
    assert set(tensors) == {"grid_thw"} and tensors["grid_thw"]["shape"] == [2, 3]
    assert b'"shapes":"[[' in answer.content and b'"keys":"[' in answer.content


async def test_head_tells_the_size_and_ends_no_promise(client: httpx.AsyncClient, fake: FakeService) -> None:
    row = await hold(client, picture())
    heads = [await client.head(f"/embeddings/{row['key']}") for _ in range(2)]
    fetched = await client.get(f"/embeddings/{row['key']}")
    assert [head.status_code for head in heads] == [200, 200]
    assert {head.headers["content-length"] for head in heads} == {str(len(fetched.content))}
    assert heads[0].content == b""
    assert (await client.head(f"/embeddings/{row['key']}")).status_code == 404


@pytest.mark.parametrize("key", ["a", "A" * 64, "g" * 64, "0" * 63, "..%2f" + "0" * 59])
async def test_a_key_that_is_none_is_refused_or_no_route(client: httpx.AsyncClient, key: str) -> None:
    for method in ("GET", "HEAD"):
        assert (await client.request(method, f"/embeddings/{key}")).status_code in (400, 404)
    assert (await client.get("/embeddings/" + "A" * 64)).json()["error"]["param"] == "key"


async def test_what_is_being_encoded_is_waited_for_by_get_and_not_by_head(
    client: httpx.AsyncClient, fake: FakeService
) -> None:
    key = (await hold(client, picture()))["key"]
    await client.get(f"/embeddings/{key}")
    fake.pool.gate.clear()
    posted = asyncio.create_task(client.post("/encode", content=picture(), headers=OCTETS))
    while not fake.pool.waiting:
        await asyncio.sleep(0)
    assert (await client.head(f"/embeddings/{key}")).status_code == 404
    hurried = await client.get(f"/embeddings/{key}", headers={"X-Request-Timeout-Ms": "5"})
    assert hurried.status_code == 504
    waiting = asyncio.create_task(client.get(f"/embeddings/{key}"))
    await asyncio.sleep(0)
    fake.pool.gate.set()
    assert (await waiting).status_code == 200 and (await posted).status_code == 200


async def test_what_is_in_the_encoder_cache_is_found_without_a_promise(settings: Settings) -> None:
    fake = fake_service()
    transport = httpx.ASGITransport(create_app(Server(settings, fake.metrics, service=fake.service)))
    async with httpx.AsyncClient(transport=transport, base_url="http://foveal") as client:
        key = (await client.post("/encode", content=picture(), headers=OCTETS)).json()["data"][0]["key"]
        assert [(await client.get(f"/embeddings/{key}")).status_code for _ in range(2)] == [200, 200]
        assert (await client.head(f"/embeddings/{key}")).status_code == 200
    assert count(fake, "fetched") == 0
    assert fake.metrics.cache_misses._value.get() == 1


async def test_a_request_is_held_whole_or_not_at_all(
    client: httpx.AsyncClient, server: Server, fake: FakeService
) -> None:
    large, small = picture(700, 700), picture(64, 64)
    fake.handover.promises.max_bytes = 300_000
    texts = [base64.b64encode(data).decode() for data in (large, small)]
    refused = await client.post("/encode", json={"images": texts, **HOLD})
    assert refused.status_code == 413 and "--handover-bytes" in refused.json()["error"]["message"]
    assert len(fake.handover.promises) == 0
    await hold(client, picture(500, 500))
    full = await client.post("/encode", content=picture(400, 400), headers=OCTETS, params=HOLD)
    assert full.status_code == 503 and full.json()["error"]["code"] == "overloaded"
    assert int(full.headers["retry-after"]) >= 1
    assert count(fake, "refused") == 3 and len(fake.handover.promises) == 1


@pytest.mark.parametrize(
    ("path", "options", "words"),
    [
        ("/encode", {"output": "pooled"}, "output=tokens"),
        ("/encode", {"deliver": "later"}, "deliver"),
        ("/v1/embeddings", {}, "use /encode"),
    ],
)
async def test_what_cannot_be_held_is_refused(
    client: httpx.AsyncClient, path: str, options: dict[str, str], words: str
) -> None:
    field = "images" if path == "/encode" else "input"
    text = base64.b64encode(picture()).decode()
    answer = await client.post(path, json={field: [text], **HOLD, **options})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, "deliver") and words in error["message"]


async def test_a_server_that_holds_nothing_says_so(client: httpx.AsyncClient, fake: FakeService) -> None:
    fake.handover.promises.max_bytes = 0
    answer = await client.post("/encode", content=picture(), headers=OCTETS, params=HOLD)
    assert answer.status_code == 400 and "--handover-bytes" in answer.json()["error"]["message"]


async def test_a_fetch_needs_a_key_of_the_server_where_there_are_any(fake: FakeService, settings: Settings) -> None:
    app = create_app(Server(settings, fake.metrics, ("secret",), service=fake.service))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://foveal") as client:
        for method in ("GET", "HEAD"):
            assert (await client.request(method, f"/embeddings/{'0' * 64}")).status_code == 401
            answer = await client.request(method, f"/embeddings/{'0' * 64}", headers={"Authorization": "Bearer secret"})
            assert answer.status_code == 404


async def test_promises_are_fetched_while_the_server_drains_which_waits_for_them(
    client: httpx.AsyncClient, fake: FakeService
) -> None:
    rows = [await hold(client, picture(text=text)) for text in "ab"]
    fake.engine.gate.is_draining = True
    idle = asyncio.create_task(fake.service.until_idle())
    for row in rows:
        await asyncio.sleep(0)
        assert not idle.done()
        assert (await client.get(f"/embeddings/{row['key']}")).status_code == 200
    await idle
    refused = await client.post("/encode", content=picture(), headers=OCTETS, params=HOLD)
    assert refused.json()["error"]["code"] == "draining"


async def test_a_fetch_that_breaks_off_leaves_the_promise(server: Server, fake: FakeService) -> None:
    """A caller who is gone before the last byte: the transport is closing when all is handed over."""
    app = create_app(server)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://foveal") as client:
        key = (await hold(client, picture()))["key"]
        await breaking_off(app, f"/embeddings/{key}", after=2)
        assert count(fake, "fetched") == 0
        assert (await client.get(f"/embeddings/{key}")).status_code == 200
    assert value_of(fake.metrics.inflight_bytes) == 0


class Transport:
    """Of a connection that the caller leaves."""

    closing = False

    def is_closing(self) -> bool:
        return self.closing

    def set_write_buffer_limits(self, high: int) -> None:
        pass


async def breaking_off(app: Callable[..., Any], path: str, after: int) -> None:
    transport, sent = Transport(), []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)
        transport.closing = len(sent) >= after

    async def receive() -> dict[str, Any]:
        if len(sent) >= after:
            return {"type": "http.disconnect"}
        await asyncio.Event().wait()
        raise AssertionError

    scope = {"type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "query_string": b""}
    scope |= {"headers": [], "http_version": "1.1", "scheme": "http", "root_path": "", "foveal.transport": transport}
    await app(scope, receive, send)
    assert len(sent) > after


async def test_with_shared_storage_files_are_there_before_the_answer(tmp_path: Path, settings: Settings) -> None:
    fake = fake_service(cache_bytes=0)
    fake.handover.storage = SharedStorage(tmp_path, 1 << 20, 600.0, 60.0, fake.metrics)
    transport = httpx.ASGITransport(create_app(Server(settings, fake.metrics, service=fake.service)))
    async with httpx.AsyncClient(transport=transport, base_url="http://foveal") as client:
        row = await hold(client, picture())
        published = (tmp_path / row["key"] / FILE).read_bytes()
        assert published == (await client.get(f"/embeddings/{row['key']}")).content
        fake.handover.promises.max_bytes = 0  # files only
        other = await hold(client, picture(text="other"))
        assert (tmp_path / other["key"] / FILE).exists()
        assert (await client.head(f"/embeddings/{other['key']}")).status_code == 404
    await fake.handover.storage.close()


async def test_promises_expire_without_a_request(settings: Settings) -> None:
    fake = fake_service(cache_bytes=0)
    now = [100.0]
    fake.handover = Handover(Promises(1 << 20, 60.0, fake.metrics, lambda: now[0]))
    transport = httpx.ASGITransport(create_app(Server(settings, fake.metrics, service=fake.service)))
    async with httpx.AsyncClient(transport=transport, base_url="http://foveal") as client:
        await hold(client, picture())
    now[0] += 60
    running = asyncio.create_task(fake.handover.run())
    while len(fake.handover.promises):
        await asyncio.sleep(0)
    running.cancel()
    assert count(fake, "expired") == 1 and fake.arenas["embeddings"].used == 0


async def test_info_shows_what_is_held(client: httpx.AsyncClient, fake: FakeService) -> None:
    await hold(client, picture())
    shown = (await client.get("/info")).json()
    assert shown["handover"]["promises"]["entries"] == 1 and shown["handover"]["shared_storage"] is None
    assert shown["limits"]["handover_seconds"] == 120.0


async def test_rows_of_every_dtype_are_held_as_answered(client: httpx.AsyncClient) -> None:
    for dtype in NUMPY:
        row = await hold(client, picture(), dtype=dtype)
        rows = tensors_of((await client.get(f"/embeddings/{row['key']}")).content)["ec_cache"]
        wanted = expected(picture(), Output("tokens", dtype), row["tokens"])  # type: ignore[arg-type]
        assert bytes(rows["data"]) == wanted.tobytes()
