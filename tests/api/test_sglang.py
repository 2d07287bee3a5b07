"""The encoder's side of SGLang's protocol, over fakes: a language server in small asks and receives."""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import numpy as np
import pytest

from foveal.api.app import create_app
from foveal.api.context import Server
from foveal.errors import Unavailable
from foveal.settings import Settings
from tests.fakes import FakeService, fake_service, picture
from tests.language_server import Failed, LanguageServer, data_uri

PICTURES = [picture(96, 64, "a"), picture(300, 200, "b"), picture(64, 640, "c")]
ADDRESS = ("127.0.0.1", 4711)


class Encoder:
    """One foveal, and a client that calls it from an address."""

    def __init__(self, fake: FakeService, caller: tuple[str, int] = ADDRESS, **settings: Any) -> None:
        self.fake = fake
        keys = settings.pop("keys", ())
        self.server = Server(Settings(sglang=True, **settings), fake.metrics, keys, service=fake.service)
        transport = httpx.ASGITransport(create_app(self.server), client=caller)
        self.client = httpx.AsyncClient(transport=transport, base_url="http://foveal")

    def count(self, backend: str, outcome: str) -> float:
        return self.fake.metrics.sglang_parts.labels(backend, outcome)._value.get()

    async def close(self) -> None:
        await self.client.aclose()
        assert self.server.sglang is not None
        self.server.sglang.close()


@pytest.fixture
async def encoder() -> AsyncIterator[Encoder]:
    made = Encoder(fake_service())
    yield made
    await made.close()


@pytest.fixture
async def second() -> AsyncIterator[Encoder]:
    made = Encoder(fake_service())
    yield made
    await made.close()


@pytest.fixture
def tokenizer(encoder: Encoder) -> Iterator[LanguageServer]:
    language = LanguageServer([encoder.client])
    yield language
    language.close()


@pytest.fixture
def scheduler(encoder: Encoder) -> Iterator[LanguageServer]:
    language = LanguageServer([encoder.client], ranks=2)
    yield language
    language.close()


async def encoded(encoder: Encoder, pictures: list[bytes]) -> tuple[bytes, list[list[int]]]:
    """Rows and grids as POST /encode answers them."""
    body = {"images": [base64.b64encode(p).decode() for p in pictures]}
    answer = await encoder.client.post("/encode", json=body)
    rows = answer.json()["data"]
    return b"".join(base64.b64decode(row["embedding"]) for row in rows), [row["grid_thw"] for row in rows]


async def test_a_path_in_the_encoder_url_leads_to_the_facade_and_leaves_encode_alone(encoder: Encoder) -> None:
    assert (await encoder.client.get("/sglang/health")).status_code == 200
    assert (await encoder.client.post("/encode", json={"images": [data_uri(PICTURES[0])]})).status_code == 200


async def test_without_the_setting_there_is_no_such_route() -> None:
    fake = fake_service()
    app = create_app(Server(Settings(), fake.metrics, service=fake.service))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://foveal") as client:
        assert (await client.post("/sglang/encode", json={})).status_code == 404


@pytest.mark.parametrize("num", [1, 2, 3])
@pytest.mark.parametrize("ranks", [0, 1, 2], ids=["tokenizer", "one rank", "two ranks"])
async def test_the_rows_are_those_of_encode_bit_for_bit(encoder: Encoder, num: int, ranks: int) -> None:
    pictures = PICTURES[:num]
    language = LanguageServer([encoder.client], ranks)
    try:
        taken = await language.ask([data_uri(p) for p in pictures])
    finally:
        language.close()
    rows, grids = await encoded(encoder, pictures)
    assert len(taken) == max(1, ranks)
    assert all(values.tobytes() == rows and told == grids for values, told in taken)
    assert encoder.count("scheduler" if ranks else "tokenizer", "sent") == 1


@pytest.mark.parametrize("ranks", [0, 2], ids=["tokenizer", "scheduler"])
async def test_two_parts_over_two_encoders_are_one_request(encoder: Encoder, second: Encoder, ranks: int) -> None:
    language = LanguageServer([encoder.client, second.client], ranks)
    try:
        taken = await language.ask([data_uri(p) for p in PICTURES])
    finally:
        language.close()
    rows, grids = await encoded(encoder, PICTURES)
    assert all(values.tobytes() == rows and told == grids for values, told in taken)
    assert encoder.fake.pool.encoded != [] != second.fake.pool.encoded


async def test_items_are_strings_or_objects_and_options_that_no_qwen_heeds_are_ignored(
    tokenizer: LanguageServer, encoder: Encoder
) -> None:
    items = [data_uri(PICTURES[0]), {"url": data_uri(PICTURES[1]), "detail": "high", "max_dynamic_patch": 4}]
    [(rows, _)] = await tokenizer.ask(items)
    assert rows.tobytes() == (await encoded(encoder, PICTURES[:2]))[0]


async def test_a_content_hash_must_be_that_of_the_bytes(tokenizer: LanguageServer) -> None:
    right = "sha256:" + hashlib.sha256(PICTURES[0]).hexdigest().upper()
    item = {"url": data_uri(PICTURES[0]), "content_hash": right}
    await tokenizer.ask([item])
    [part] = tokenizer.parts([item | {"content_hash": "sha256:" + "0" * 64}])
    answer, failed = await asyncio.gather(tokenizer.encode(part), tokenizer.received(), return_exceptions=True)
    assert isinstance(answer, httpx.Response) and answer.status_code == 400
    assert isinstance(failed, Failed) and "content_hash" in str(failed)


@pytest.mark.parametrize("comes_first", ["encode", "ranks", "between"])
async def test_ranks_may_say_where_they_wait_before_or_after_the_part(
    scheduler: LanguageServer, encoder: Encoder, comes_first: str
) -> None:
    [part] = scheduler.parts([data_uri(PICTURES[0])])
    early = {"encode": 0, "ranks": 2, "between": 1}[comes_first]
    for rank in range(early):
        assert (await scheduler.receive_url(part, rank)).json() is None
    work = asyncio.create_task(scheduler.encode(part))
    while not encoder.fake.pool.encoded:
        await asyncio.sleep(0)
    for rank in range(early, 2):
        assert not work.done()
        assert (await scheduler.receive_url(part, rank)).json() is None
    taken = [await scheduler.received(rank) for rank in range(2)]
    assert (await work).status_code == 200
    rows, _ = await encoded(encoder, PICTURES[:1])
    assert [values.tobytes() for values, _ in taken] == [rows, rows]
    assert encoder.server.sglang is not None and len(encoder.server.sglang.receivers) == 0


async def test_ranks_that_never_say_where_they_wait_end_the_part_at_its_deadline() -> None:
    encoder = Encoder(fake_service(), request_timeout_seconds=0.2)
    language = LanguageServer([encoder.client], ranks=1)
    [part] = language.parts([data_uri(PICTURES[0])])
    answer = await language.encode(part)
    assert answer.status_code == 504 and answer.json()["message"] == answer.json()["error"]["message"]
    assert encoder.count("scheduler", "undelivered") == 1
    language.close()
    await encoder.close()


async def test_a_bad_image_is_told_to_the_tokenizer_and_answered(tokenizer: LanguageServer, encoder: Encoder) -> None:
    [part] = tokenizer.parts([data_uri(PICTURES[0]), data_uri(b"FAKE BAD")])
    answer, failed = await asyncio.gather(tokenizer.encode(part), tokenizer.received(), return_exceptions=True)
    assert isinstance(answer, httpx.Response) and answer.status_code == 422
    assert answer.json()["status"] == "error" and "damaged" in answer.json()["message"]
    assert answer.json()["error"]["code"] == "undecodable"
    assert isinstance(failed, Failed)
    assert failed.told.error_code == 422 and type(failed.told.error_code) is int
    assert failed.told.shape is None and "damaged" in str(failed.told.error_msg)
    assert encoder.count("tokenizer", "refused") == 1


@pytest.mark.parametrize("item", [data_uri(b"FAKE BAD"), "not base64", 5, "file:///etc/passwd"])
async def test_an_error_names_the_item_by_sglangs_word_for_it(
    tokenizer: LanguageServer, encoder: Encoder, item: object
) -> None:
    [part] = tokenizer.parts([data_uri(PICTURES[0]), item])
    answer = await tokenizer.encode(part)
    assert answer.status_code in (400, 403, 422) and answer.json()["error"]["param"] == "mm_items[1]"


async def test_a_scheduler_is_sent_no_error_since_one_ends_its_server(scheduler: LanguageServer) -> None:
    [part] = scheduler.parts([data_uri(b"FAKE BAD")])
    for rank in range(2):
        await scheduler.receive_url(part, rank)
    assert (await scheduler.encode(part)).status_code == 422
    assert [await socket.poll(50) for socket in scheduler.sockets] == [0, 0]


async def test_what_may_pass_is_waited_for_where_a_refusal_would_end_the_server(
    scheduler: LanguageServer, encoder: Encoder
) -> None:
    pool = encoder.fake.pool
    pool.error = Unavailable("no worker", retry_after=0.01)
    asked = asyncio.create_task(scheduler.ask([data_uri(PICTURES[0])]))
    while encoder.fake.prep.probes < 3:
        await asyncio.sleep(0)
    pool.error = None
    assert len(await asked) == 2
    assert encoder.count("scheduler", "sent") == 1


async def test_what_may_pass_is_told_a_tokenizer_at_once(tokenizer: LanguageServer, encoder: Encoder) -> None:
    encoder.fake.pool.error = Unavailable("no worker", retry_after=1.0)
    [part] = tokenizer.parts([data_uri(PICTURES[0])])
    answer, failed = await asyncio.gather(tokenizer.encode(part), tokenizer.received(), return_exceptions=True)
    assert isinstance(answer, httpx.Response) and answer.status_code == 503
    assert isinstance(failed, Failed) and failed.told.error_code == 503
    assert encoder.count("tokenizer", "failed") == 1


async def test_parts_under_way_are_served_while_the_server_drains(tokenizer: LanguageServer, encoder: Encoder) -> None:
    encoder.fake.engine.gate.is_draining = True
    assert len(await tokenizer.ask([data_uri(PICTURES[0])])) == 1


async def test_rows_are_pushed_to_no_host_but_the_callers_own(encoder: Encoder, tokenizer: LanguageServer) -> None:
    far = Encoder(fake_service(), caller=("192.0.2.7", 1))
    [part] = tokenizer.parts([data_uri(PICTURES[0])])
    answer = await far.client.post("/sglang/encode", json=part)
    assert answer.status_code == 403 and answer.json()["error"]["code"] == "url_forbidden"
    assert "--sglang-allow-host" in answer.json()["message"]
    assert far.count("tokenizer", "refused") == 1 and far.fake.pool.encoded == []
    url = {"req_id": "r", "receive_count": 1, "receive_url": "169.254.169.254:80"}
    assert (await encoder.client.post("/sglang/scheduler_receive_url", json=url)).status_code == 403
    assert await tokenizer.sockets[0].poll(20) == 0
    await far.close()


async def test_an_allowed_host_is_pushed_to_by_whom_ever(tokenizer: LanguageServer) -> None:
    far = Encoder(fake_service(), caller=("192.0.2.7", 1), sglang_allow_host=["127.0.0.0/8"])
    tokenizer.encoders = [far.client]
    assert len(await tokenizer.ask([data_uri(PICTURES[0])])) == 1
    await far.close()


async def test_a_key_may_come_as_the_password_of_the_url() -> None:
    encoder = Encoder(fake_service(), keys=("secret",))
    language = LanguageServer([encoder.client])
    [part] = language.parts([data_uri(PICTURES[0])])
    refused = await encoder.client.post("/sglang/encode", json=part)
    assert refused.status_code == 401 and refused.json()["message"]
    for wrong in ("c2VjcmV0", "!", base64.b64encode(b"sglang:other").decode()):
        headers = {"Authorization": f"Basic {wrong}"}
        assert (await encoder.client.post("/sglang/encode", json=part, headers=headers)).status_code == 401
    encoder.client.auth = httpx.BasicAuth("sglang", "secret")
    assert len(await language.ask([data_uri(PICTURES[0])])) == 1
    language.close()
    await encoder.close()


async def test_nobody_has_a_part_sent_elsewhere_whose_key_it_does_not_hold() -> None:
    encoder = Encoder(fake_service(), keys=("mine", "theirs"), request_timeout_seconds=0.2)
    language, thief = LanguageServer([encoder.client], ranks=1), LanguageServer([encoder.client], ranks=1)
    [part] = language.parts([data_uri(PICTURES[0])])
    encoder.client.auth = httpx.BasicAuth("x", "theirs")
    assert (await thief.receive_url(part, 0)).status_code == 200
    encoder.client.auth = httpx.BasicAuth("x", "mine")
    assert (await language.encode(part)).status_code == 504
    assert await thief.sockets[0].poll(20) == 0
    for one in (language, thief):
        one.close()
    await encoder.close()


@pytest.mark.parametrize(
    "change, words",
    [
        ({"modality": "VIDEO"}, "only images"),
        ({"modality": "AUDIO"}, "only images"),
        ({"mm_items": []}, "no image"),
        ({"mm_items": [["nested"]]}, "an image is"),
        ({"mm_items": "text"}, "Expected `array`"),
        ({"part_idx": 1}, "not below num_parts"),
        ({"num_parts": 0}, ">= 1"),
        ({"num_parts": True}, "Expected `int`"),
        ({"req_id": ""}, "length"),
        ({"prefill_host": None}, "without prefill_host"),
        ({"embedding_port": 0}, ">= 1"),
        ({"embedding_port": [5000]}, "Expected `int | null`"),
        ({"mm_items": ["file:///etc/passwd"]}, "fetches no URLs"),
    ],
    ids=str,
)
async def test_what_is_no_part_is_refused_with_a_sentence(
    tokenizer: LanguageServer, change: dict[str, Any], words: str
) -> None:
    [part] = tokenizer.parts([data_uri(PICTURES[0])])
    answer = await tokenizer.encode(part | change)
    assert answer.status_code in (400, 403), answer.text
    assert words in answer.json()["message"]


@pytest.mark.parametrize(
    "change",
    [{"receive_url": "nowhere"}, {"receive_url": "127.0.0.1:0"}, {"receive_count": 0}, {"receive_count": 1 << 20}],
    ids=str,
)
async def test_what_is_no_rank_is_refused(scheduler: LanguageServer, change: dict[str, Any]) -> None:
    [part] = scheduler.parts([data_uri(PICTURES[0])])
    answer = await scheduler.receive_url(part, 0, **change)
    assert answer.status_code == 400 and answer.json()["message"]


@pytest.mark.parametrize("path", ["send", "scheduler_receive_meta_data"])
async def test_mooncake_is_told_which_back_end_to_take(encoder: Encoder, path: str) -> None:
    answer = await encoder.client.post(f"/sglang/{path}", json={"req_id": "r", "part_idx": 0})
    assert answer.status_code == 400 and "zmq_to_tokenizer" in answer.json()["message"]


@pytest.mark.parametrize("path", ["encode", "scheduler_receive_url", "send", "scheduler_receive_meta_data"])
async def test_every_post_needs_the_key(path: str) -> None:
    encoder = Encoder(fake_service(), keys=("secret",))
    answer = await encoder.client.post(f"/sglang/{path}", json={"req_id": "r", "part_idx": 0})
    assert answer.status_code == 401 and answer.json()["message"]
    encoder.client.auth = httpx.BasicAuth("sglang", "secret")
    assert (await encoder.client.post(f"/sglang/{path}", json={"req_id": "r", "part_idx": 0})).status_code == 400
    await encoder.close()


async def test_a_tokenizer_may_call_its_own_host_localhost(tokenizer: LanguageServer, encoder: Encoder) -> None:
    [part] = tokenizer.parts([data_uri(PICTURES[0])])
    answer, taken = await asyncio.gather(tokenizer.encode(part | {"prefill_host": "localhost"}), tokenizer.received())
    assert answer.status_code == 200 and taken[0].tobytes() == (await encoded(encoder, PICTURES[:1]))[0]


async def test_nothing_is_left_in_memory_when_a_part_is_sent(tokenizer: LanguageServer) -> None:
    encoder = Encoder(fake_service(cache_bytes=0))
    tokenizer.encoders = [encoder.client]
    taken = await tokenizer.ask([data_uri(p) for p in PICTURES])
    assert np.isfinite(taken[0][0].astype(np.float32)).all()
    for _ in range(1000):  # ZeroMQ's thread may be in the middle of letting go
        if not encoder.fake.arenas["embeddings"].used:
            break
        await asyncio.sleep(0)
    assert encoder.fake.arenas["embeddings"].used == 0
    await encoder.close()
