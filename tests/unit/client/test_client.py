"""Both clients over a mock transport: what they send, and what they make of the answer."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from foveal_client import AsyncClient, Client, InvalidResponse, Level, Unauthorized

Respond = Callable[..., httpx.Response]
Twin = Callable[..., Any]


class Recorder:
    """A handler that keeps what it was sent."""

    def __init__(self, *responses: httpx.Response) -> None:
        self.responses = list(responses)
        self.requests: list[httpx.Request] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        return self.responses.pop(0)

    @property
    def request(self) -> httpx.Request:
        [request] = self.requests
        return request


async def test_one_image_is_a_raw_body(twin: Twin, ok: Respond) -> None:
    server = Recorder(ok())
    embedding = await twin("encode", server, b"picture", dtype="float32", normalize=True, max_pixels=900, model=None)
    assert embedding.shape == (2, 3)
    sent = server.request
    assert (sent.method, sent.url.path, sent.content) == ("POST", "/encode", b"picture")
    assert sent.headers["content-type"] == "application/octet-stream"
    assert sent.headers["accept"] == "application/vnd.foveal.safetensors"
    assert dict(sent.url.params) == {"dtype": "float32", "normalize": "true", "max_pixels": "900"}


async def test_a_list_of_one_is_a_list(twin: Twin, ok: Respond) -> None:
    [embedding] = await twin("encode", Recorder(ok()), [b"picture"])
    assert embedding.shape == (2, 3)


async def test_several_images_are_the_files_of_one_multipart_body(twin: Twin, ok: Respond) -> None:
    server = Recorder(ok(3))
    embeddings = await twin("encode", server, (b"one", b"two", b"three"), background="#00ff00")
    assert [embedding.values[0, 0] for embedding in embeddings] == [0, 1, 2]
    sent = server.request
    assert sent.headers["content-type"].startswith("multipart/form-data; boundary=")
    assert sent.content.count(b'filename="image-') == 3
    assert sent.content.index(b"one") < sent.content.index(b"two") < sent.content.index(b"three")
    assert dict(sent.url.params) == {"background": "#00ff00"}


async def test_a_url_makes_the_body_json_for_all(twin: Twin, ok: Respond) -> None:
    server = Recorder(ok(2))
    await twin("encode", server, ["https://host/cat.png", b"picture"], output="tokens", priority=3, normalize=False)
    sent = server.request
    assert sent.headers["content-type"] == "application/json"
    assert not sent.url.params
    images = [{"url": "https://host/cat.png"}, {"data": base64.b64encode(b"picture").decode()}]
    assert json.loads(sent.content) == {"images": images, "output": "tokens", "priority": 3, "normalize": False}


async def test_paths_and_arrays_are_sent_as_bytes(twin: Twin, ok: Respond, tmp_path: Path) -> None:
    (tmp_path / "cat.jpg").write_bytes(b"a picture")
    server = Recorder(ok(), ok())
    call = twin.made(server)
    await call("encode", tmp_path / "cat.jpg")
    await call("encode", np.zeros((2, 2, 3), np.uint8))
    assert server.requests[0].content == b"a picture"
    assert server.requests[1].content.startswith(b"\x89PNG")


async def test_an_option_that_is_none_of_the_servers_is_a_type_error(twin: Twin) -> None:
    with pytest.raises(TypeError, match="no option dtpye"):
        await twin("encode", Recorder(), b"picture", dtpye="float32")


async def test_no_images_are_refused_before_anything_is_sent(twin: Twin) -> None:
    with pytest.raises(ValueError, match="no image"):
        await twin("encode", Recorder(), [])


async def test_request_id_and_timings_come_with_the_embedding(twin: Twin, ok: Respond) -> None:
    answer = ok(1, **{"X-Request-ID": "mine-1", "Server-Timing": "queue;dur=0.5, total;dur=2"})
    server = Recorder(answer)
    embedding = await twin("encode", server, b"picture", request_id="mine-1")
    assert server.request.headers["x-request-id"] == "mine-1"
    assert embedding.request_id == "mine-1"
    assert embedding.timings == {"queue": 0.5, "total": 2.0}


@pytest.mark.parametrize("request_id", ["", "two\nlines", "é", "x" * 129])
async def test_a_request_id_that_no_header_can_hold_is_refused(twin: Twin, request_id: str) -> None:
    with pytest.raises(ValueError, match="printable ASCII"):
        await twin("encode", Recorder(), b"picture", request_id=request_id)


async def test_an_answer_of_another_type_is_refused(twin: Twin) -> None:
    page = httpx.Response(200, headers={"Content-Type": "text/html; charset=utf-8"}, text="<html>")
    with pytest.raises(InvalidResponse, match=r"expected application/vnd\.foveal\.safetensors, got text/html"):
        await twin("encode", Recorder(page), b"picture")


async def test_fewer_embeddings_than_images_are_refused(twin: Twin, ok: Respond) -> None:
    with pytest.raises(InvalidResponse, match="for 2 images"):
        await twin("encode", Recorder(ok(1)), [b"one", b"two"])


async def test_the_key_goes_out_as_a_bearer_and_is_never_printed(twin: Twin, ok: Respond) -> None:
    server = Recorder(ok())
    await twin.made(server, api_key="secret-key\n")("encode", b"picture")
    assert server.request.headers["authorization"] == "Bearer secret-key"
    assert "secret-key" not in repr(vars(Client(api_key="secret-key")))


async def test_address_and_key_come_from_the_environment(
    twin: Twin, ok: Respond, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOVEAL_URL", "http://elsewhere:9/base/")
    monkeypatch.setenv("FOVEAL_API_KEY", "from-environment")
    server = Recorder(ok())
    await twin.made(server, base_url=None)("encode", b"picture")
    assert str(server.request.url) == "http://elsewhere:9/base/encode"
    assert server.request.headers["authorization"] == "Bearer from-environment"


async def test_without_any_address_it_is_this_machine(twin: Twin, ok: Respond) -> None:
    server = Recorder(ok())
    await twin.made(server, base_url=None)("encode", b"picture")
    assert str(server.request.url) == "http://127.0.0.1:8000/encode"
    assert "authorization" not in server.request.headers


@pytest.mark.parametrize("kind", [Client, AsyncClient])
@pytest.mark.parametrize(
    "settings", [{"base_url": "host:8000"}, {"timeout": 0}, {"timeout": float("inf")}, {"max_retries": -1}], ids=str
)
def test_settings_that_cannot_work_are_refused_at_once(kind: type, settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"base_url|timeout|max_retries"):
        kind(**settings)


async def test_info_has_what_programs_branch_on_and_the_rest_raw(twin: Twin) -> None:
    levels = [{"name": "main", "start": 0, "stop": 8}]
    said = {"model": "m", "family": "qwen3_vl", "revision": "r", "levels": levels, "limits": {"a": 1}, "workers": []}
    server = Recorder(httpx.Response(200, json=said))
    info = await twin("info", server)
    assert server.request.url.path == "/info"
    assert (info.model, info.family, info.revision, info.limits) == ("m", "qwen3_vl", "r", {"a": 1})
    assert (info.levels, info.raw) == ((Level("main", 0, 8),), said)


async def test_models_are_names(twin: Twin) -> None:
    server = Recorder(httpx.Response(200, json={"object": "list", "data": [{"id": "m", "object": "model"}]}))
    assert await twin("models", server) == ["m"]
    assert server.request.url.path == "/v1/models"


@pytest.mark.parametrize("method", ["info", "models"])
@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"model": 1, "data": [{}]}', b"[" * 100_000])
async def test_descriptions_that_are_none_are_refused(twin: Twin, method: str, body: bytes) -> None:
    with pytest.raises(InvalidResponse):
        await twin(method, Recorder(httpx.Response(200, content=body)))


async def test_ready_is_yes_or_no_and_never_retried(twin: Twin, refusal: Respond) -> None:
    server = Recorder(httpx.Response(200, json={}), refusal(503, "unavailable", True))
    call = twin.made(server)
    assert [await call("is_ready"), await call("is_ready")] == [True, False]
    assert server.requests[0].url.path == "/ready"


@pytest.mark.parametrize("error", [httpx.ConnectError("refused"), httpx.ReadTimeout("slow")], ids=repr)
async def test_a_server_out_of_reach_is_not_ready(twin: Twin, error: Exception) -> None:
    def fail(request: httpx.Request) -> httpx.Response:
        raise error

    assert await twin("is_ready", fail) is False


async def test_a_refused_key_is_no_answer_about_readiness(twin: Twin, refusal: Respond) -> None:
    with pytest.raises(Unauthorized):
        await twin("is_ready", Recorder(refusal(401, "unauthorized")))


async def test_an_httpx_client_of_the_callers_stays_open(ok: Respond) -> None:
    transport = httpx.MockTransport(lambda request: ok())
    with httpx.Client(transport=transport) as http, Client(http_client=http) as client:
        client.encode(b"picture")
        client.close()
        assert not http.is_closed
    async with httpx.AsyncClient(transport=transport) as awaited:
        async with AsyncClient(http_client=awaited) as client_:
            await client_.encode(b"picture")
        assert not awaited.is_closed


def test_embeddings_of_one_answer_are_writable_views_of_one_body(ok: Respond) -> None:
    with Client(transport=httpx.MockTransport(lambda request: ok(2))) as client:
        first, second = client.encode([b"one", b"two"])
    assert first.values.flags.writeable and not first.values.flags.owndata
    first.values[:] = 9
    assert second.values.max() == 1
