"""The gateway over fakes and a fake LLM server: what is swapped, what passes, who may, and what is counted."""

from __future__ import annotations

import asyncio
import base64
import json

import pytest

from foveal.errors import ConfigurationError
from foveal.settings import Settings
from foveal.types import Output
from tests.api.gateways import CHAT, bits, chat, gateway, image_part, rows_of, text
from tests.fakes import expected, fake_service, picture, value_of
from tests.llm import STREAM_HEAD, Sent, Writer, chunk, fake_llm, whole


async def test_pictures_become_the_rows_that_encode_answers_bit_for_bit_and_in_order() -> None:
    shots = [picture(96, 64, "a"), picture(128, 96, "b")]
    async with fake_llm() as llm, gateway(llm.url) as running:
        sent = chat(text("one"), image_part(shots[0]), text("two"), image_part(shots[1], uuid="mine"), seed=7)
        answer = await running.http.post(CHAT, json=sent)
        assert answer.status_code == 200 and answer.json()["choices"][0]["message"]["content"] == "hello"
        body = llm.requests[0].json
        one, first, two, second = body["messages"][0]["content"]
        assert (one, two) == (text("one"), text("two")) and body["seed"] == 7 and body["model"] == "llm"
        for shot, part in zip(shots, (first, second), strict=True):
            row = (await running.http.post("/encode", content=shot, headers={"Content-Type": "image/png"})).json()[
                "data"
            ][0]
            assert row["cached"] and row["key"] == part["uuid"] != "mine"
            assert part["type"] == "image_embeds" and part["image_embeds"]["image_grid_thw"] == row["grid_thw"]
            assert bits(rows_of(part)) == base64.b64decode(row["embedding"])
            assert list(rows_of(part).shape) == row["shape"]
            assert set(part) == {"type", "image_embeds", "uuid"} and len(part["image_embeds"]) == 2


@pytest.mark.parametrize(
    "body",
    [
        b'{ "messages":[{"role":"user","content":"hi"}],"temperature":1.0,"big":123456789012345678901234567890 }\n',
        b'{"messages":[{"role":"user","content":[{"type":"text","text":"\\u00e4"},"plain"]}],"a":1,"a":2}',
        b'{"messages":[{"role":"user","content":[{"type":"video_url","video_url":{"url":"http://v"}}]}]}',
        b'{"messages":[{"role":"user","content":[{"type":"image_embeds","image_embeds":"AA==","uuid":"k"}]}]}',
        b'{"messages":"none"}',
        b"[]",
        b'{"messages":[{"role":"user","content":"\\ud83d"}]}',
        b'{"messages":[{"role":"user","content":"hi"}],"temperature":NaN}',
        b'\xef\xbb\xbf{"messages":[{"role":"user","content":"hi"}]}',
        b'{"messages":[{"role":"user","content":"tab\there"}]}',
        b'{"messages":',
        b"",
    ],
    ids=lambda body: body[:60].decode("latin-1"),
)
async def test_what_has_no_picture_passes_byte_for_byte(body: bytes) -> None:
    async with fake_llm() as llm, gateway(llm.url) as running:
        await running.http.post(CHAT, content=body)
        assert llm.requests[0].body == body


async def test_what_is_around_a_picture_passes_byte_for_byte() -> None:
    before = b'{"x" : 1.50, "messages":[ {"role":"tool","content":[ '
    after = b' , {"type":"text","text":"\\u00e4"}], "cache_control":{"ttl":1e3}} ]}\n'
    async with fake_llm() as llm, gateway(llm.url) as running:
        await running.http.post(CHAT, content=before + json.dumps(image_part(picture())).encode() + after)
        body = llm.requests[0].body
        assert body.startswith(before) and body.endswith(after)
        assert llm.requests[0].json["messages"][0]["content"][0]["type"] == "image_embeds"


async def test_one_picture_sent_twice_is_encoded_once_and_a_second_turn_is_a_hit() -> None:
    part = image_part(picture())
    async with fake_llm() as llm, gateway(llm.url) as running:
        for _ in range(2):
            assert (await running.http.post(CHAT, json=chat(part, part))).status_code == 200
        assert len(running.fake.pool.encoded) == 1
        parts = [part for sent in llm.requests for part in sent.json["messages"][0]["content"]]
        assert len(parts) == 4 and len({json.dumps(part) for part in parts}) == 1


async def test_keys_are_held_before_the_llm_server_is_told() -> None:
    async with fake_llm() as llm, gateway(llm.url, llm_handover="keys") as running:
        held = []

        async def answer(sent: Sent, writer: Writer) -> None:
            held.append(running.fake.handover.promises.get(sent.json["messages"][0]["content"][0]["uuid"]))
            writer.write(whole(b"{}"))

        llm.answer = answer
        await running.http.post(CHAT, json=chat(image_part(picture(300, 200))))
        part = llm.requests[0].json["messages"][0]["content"][0]
        assert held[0] is not None
        assert part == {"type": "image_embeds", "image_embeds": {"image_grid_thw": [1, 14, 20]}, "uuid": part["uuid"]}
        fetched = await running.http.get(f"/embeddings/{part['uuid']}")
        assert fetched.status_code == 200


async def test_a_stream_passes_chunk_by_chunk_as_it_comes() -> None:
    events: asyncio.Queue[bytes] = asyncio.Queue()

    async def answer(sent: Sent, writer: Writer) -> None:
        writer.write(STREAM_HEAD)
        while event := await events.get():
            writer.write(chunk(event))
        writer.write(chunk(b""))

    async with fake_llm(answer) as llm, gateway(llm.url, fake=fake_service(cache_bytes=0)) as running:
        request = running.http.stream("POST", CHAT, json=chat(image_part(picture(800, 600)), stream=True))
        async with request as response:
            assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
            # what the LLM server has is neither counted nor held here any more
            assert value_of(running.fake.metrics.inflight_bytes) == 0
            assert [arena.used for arena in running.fake.arenas.values()] == [0, 0, 0]
            chunks = response.aiter_raw()
            for i in range(3):
                events.put_nowait(b"data: %d\n\n" % i)
                assert await anext(chunks) == b"data: %d\n\n" % i
            events.put_nowait(b"")
            assert [rest async for rest in chunks] == []
        assert await running.ended() == {"answered": 1}


async def test_status_and_headers_pass_but_those_of_one_connection() -> None:
    async def answer(sent: Sent, writer: Writer) -> None:
        hop = ("Connection: X-Secret", "X-Secret: 1", "Keep-Alive: timeout=5", "X-Mine: 2", "X-Request-ID: theirs")
        writer.write(whole(b'{"error":"theirs"}', 418, *hop))

    async with fake_llm(answer) as llm, gateway(llm.url) as running:
        headers = {"X-Request-ID": "abc", "Connection": "close, X-Hop", "X-Hop": "1", "X-Kept": "2", "TE": "trailers"}
        headers["Upgrade"] = "h2c"
        answer_ = await running.http.post(CHAT + "?a=b%20c", json=chat("hi"), headers=headers)
        assert answer_.status_code == 418 and answer_.content == b'{"error":"theirs"}'
        assert answer_.headers["x-mine"] == "2" and answer_.headers.get_list("x-request-id") == ["abc"]
        assert not {"x-secret", "keep-alive"} & set(answer_.headers)
        sent = llm.requests[0]
        assert sent.line == f"POST {CHAT}?a=b%20c HTTP/1.1"
        assert sent.headers["x-kept"] == "2" and sent.headers["x-request-id"] == "abc"
        assert sent.headers["connection"] == "close" and not {"x-hop", "te"} & set(sent.headers)
        assert not {"upgrade", "ignored"} & set(sent.headers)
        assert sent.headers["host"] == f"127.0.0.1:{llm.port}"


async def test_errors_of_the_llm_server_keep_status_and_body() -> None:
    async def answer(sent: Sent, writer: Writer) -> None:
        writer.write(whole(b"no", 500))

    async with fake_llm(answer) as llm, gateway(llm.url) as running:
        found = await running.http.post(CHAT, json=chat("hi"))
        assert (found.status_code, found.content) == (500, b"no")
        assert await running.ended() == {"llm_error": 1}


async def test_compressed_bodies_are_refused_in_words_that_fit_any_route() -> None:
    async with fake_llm() as llm, gateway(llm.url) as running:
        for path in (CHAT, "/v1/files"):
            found = await running.http.post(path, content=b"x", headers={"Content-Encoding": "gzip"})
            message = found.json()["error"]["message"]
            assert found.status_code == 415 and "Content-Encoding" in message and "image" not in message
        assert not llm.requests


async def test_the_rest_of_v1_passes_and_what_is_answered_here_does_not() -> None:
    async with fake_llm() as llm, gateway(llm.url + "/base/v1") as running:
        for method, path in (("GET", "/v1/models/x"), ("POST", "/v1/completions"), ("DELETE", "/v1/files/a%2Fb?x=1")):
            assert (await running.http.request(method, path, content=b"raw" if method == "POST" else None)).is_success
        assert llm.requests.pop(0).line.startswith("GET /base/v1/models ")  # which is no list, so it is asked itself
        assert [sent.line.split()[:2] for sent in llm.requests] == [
            ["GET", "/base/v1/models/x"], ["POST", "/base/v1/completions"], ["DELETE", "/base/v1/files/a%2Fb?x=1"]
        ]  # fmt: skip
        assert llm.requests[1].body == b"raw" and "content-length" not in llm.requests[0].headers
        assert (await running.http.head("/v1/whatever")).status_code == 200
        assert (await running.http.get("/v1/embeddings")).status_code == 405
        for path in ("/v1/%2e%2e/metrics", CHAT + "/"):
            assert (await running.http.post(path, json={})).status_code == 404
        assert (await running.http.post("/v1/embeddings", json={"input": "RkFLRSA5Nng2NA=="})).status_code == 200
        assert len(llm.requests) == 4


async def test_models_are_the_llm_servers_then_our_own() -> None:
    async def answer(sent: Sent, writer: Writer) -> None:
        writer.write(whole(b'{"object":"list","data":[{"id":"llm","object":"model","max_model_len":5}]}'))

    async with fake_llm(answer) as llm, gateway(llm.url) as running:
        found = (await running.http.get("/v1/models")).json()["data"]
        assert [entry["id"] for entry in found] == ["llm", "builtin:tiny"] and found[0]["max_model_len"] == 5
        await llm.stop()
        assert [entry["id"] for entry in (await running.http.get("/v1/models")).json()["data"]] == ["builtin:tiny"]
        assert running.is_empty()


@pytest.mark.parametrize(
    ("part", "status", "code"),
    [
        (image_part(b"FAKE BAD"), 422, "undecodable"),
        ({"type": "image_url", "image_url": {"url": "http://a/b"}}, 403, "url_forbidden"),
        ({"type": "image_url", "image_url": {"url": "data:;base64,!"}}, 400, "bad_base64"),
        ({"type": "image_url", "image_url": None, "uuid": "another caller's"}, 400, "invalid_request"),
    ],
    ids=["damaged", "url", "base64", "uuid_alone"],
)
async def test_a_bad_picture_is_named_by_its_place_and_nothing_is_sent(part: dict, status: int, code: str) -> None:
    async with fake_llm() as llm, gateway(llm.url) as running:
        found = await running.http.post(CHAT, json=chat(text("a"), image_part(picture()), part))
        error = found.json()["error"]
        assert (found.status_code, error["code"], error["param"]) == (status, code, "messages[0].content[2]")
        assert not llm.requests and await running.ended() == {"refused": 1}


async def test_limits_and_fields_that_would_prepare_pictures_otherwise_are_refused() -> None:
    async with fake_llm() as llm, gateway(llm.url, max_images_per_request=1) as running:
        many = await running.http.post(CHAT, json=chat(*[image_part(picture())] * 2))
        kwargs = await running.http.post(CHAT, json=chat(image_part(picture()), mm_processor_kwargs={"max_pixels": 1}))
        assert many.status_code == 413 and kwargs.status_code == 400
        assert kwargs.json()["error"]["param"] == "mm_processor_kwargs"
        malformed = await running.http.post(CHAT, content=b'{"messages":[{"content":[{"type":"image_url"')
        assert malformed.json()["error"]["code"] == "invalid_request" and not llm.requests


async def test_a_deadline_covers_encoding_and_not_the_llm_server() -> None:
    go = asyncio.Event()

    async def answer(sent: Sent, writer: Writer) -> None:
        await go.wait()
        writer.write(whole(b"{}"))

    async with fake_llm(answer) as llm, gateway(llm.url) as running:
        hurry = {"X-Request-Timeout-Ms": "5"}
        running.fake.pool.gate.clear()
        late = await running.http.post(CHAT, json=chat(image_part(picture())), headers=hurry)
        assert late.status_code == 504 and not llm.requests
        running.fake.pool.gate.set()
        calm = asyncio.create_task(
            running.http.post(CHAT, json=chat("hi"), headers={"X-Request-Timeout-Ms": "1000"}, timeout=30)
        )
        await llm.until_sent()
        go.set()
        assert (await calm).status_code == 200


@pytest.mark.parametrize(
    ("keys", "own", "sends", "passed"),
    [
        ((), None, "Bearer caller", "Bearer caller"),
        ((), "ours", "Bearer caller", "Bearer ours"),
        (("caller",), None, "Bearer caller", None),
        (("caller",), "ours", "Bearer caller", "Bearer ours"),
    ],
    ids=["passes", "replaced", "kept_here", "both"],
)
async def test_whose_key_the_llm_server_sees(keys: tuple, own: str | None, sends: str, passed: str | None) -> None:
    more = {"llm_api_key": own} if own else {}
    async with fake_llm() as llm, gateway(llm.url, api_key=keys, **more) as running:
        await running.http.post(CHAT, json=chat("hi"), headers={"Authorization": sends})
        assert llm.requests[0].headers.get("authorization") == passed
        if keys:
            assert (await running.http.post(CHAT, json=chat("hi"))).status_code == 401
            assert (await running.http.get("/v1/models/x")).status_code == 401
            assert len(llm.requests) == 1


async def test_the_log_line_has_stages_and_server_and_no_key(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    async with fake_llm() as llm, gateway(llm.url) as running:
        headers = {"Authorization": "Bearer secret", "X-Request-ID": "r1"}
        found = await running.http.post(CHAT, json=chat(image_part(picture())), headers=headers)
        assert "encode;dur=" in found.headers["server-timing"]
        await running.ended()
    line = next(vars(record) for record in caplog.records if record.message == "request")
    assert line["route"] == CHAT and line["images"] == 1 and line["upstream"] == f"127.0.0.1:{llm.port}"
    assert {"fetch", "prep", "encode", "llm", "stream"} <= set(line)
    assert "secret" not in caplog.text and "secret" not in str([vars(record) for record in caplog.records])


async def test_info_shows_the_llm_servers_and_ready_does_not_ask_them() -> None:
    async with fake_llm() as llm, gateway(llm.url) as running:
        await llm.stop()
        assert (await running.http.post(CHAT, json=chat("hi"))).status_code == 503
        assert (await running.http.get("/ready")).status_code == 200
        (shown,) = (await running.http.get("/info")).json()["llm_servers"]
        assert (shown["url"], shown["up"], shown["open_requests"]) == (f"127.0.0.1:{llm.port}", False, 0)


async def test_large_embeddings_go_out_in_pieces_with_their_length() -> None:
    shot = picture(1600, 1600)
    async with fake_llm() as llm, gateway(llm.url) as running:
        assert (await running.http.post(CHAT, json=chat(image_part(shot)))).status_code == 200
        (part,) = llm.requests[0].json["messages"][0]["content"]
        rows = rows_of(part)
        assert bits(rows) == expected(shot, Output("tokens", "float32"), rows.shape[0]).tobytes()
        assert int(llm.requests[0].headers["content-length"]) == len(llm.requests[0].body) > 1 << 20


async def test_wrong_settings_are_refused() -> None:
    for settings, word in (
        ({"llm_url": ("http://user:word@host",)}, "--llm-api-key"),
        ({"llm_url": ("http://host",), "llm_handover": "keys", "handover_bytes": 0}, "--handover-bytes"),
        ({"llm_url": (), "llm_handover": "keys"}, "set --llm-url"),
        ({"llm_url": (), "llm_api_key": "key"}, "set --llm-url"),
        ({"llm_url": ("http://host", "http://localhost:8000/v1"), "host": "0.0.0.0"}, "itself"),
    ):
        with pytest.raises(ConfigurationError, match=word):
            async with gateway(*settings.pop("llm_url"), **settings):
                raise AssertionError
    with pytest.raises(ValueError, match="http"):
        Settings(llm_url=("host:80",))
