"""Every refusal that the api decides by itself has its code, its status and a sentence."""

from __future__ import annotations

import base64

import httpx
import pytest

from foveal.api.context import Server
from foveal.errors import BY_CODE
from tests.fakes import FakeService, picture

OCTETS = {"Content-Type": "application/octet-stream"}
JSON = {"Content-Type": "application/json"}
GOOD = base64.b64encode(picture()).decode()


def refused(answer: httpx.Response, code: str, param: str | None = None) -> dict:
    error = answer.json()["error"]
    assert error["code"] == code, error
    assert answer.status_code == BY_CODE[code].status
    assert error["request_id"] == answer.headers["x-request-id"]
    assert error["retryable"] is BY_CODE[code].retryable
    if param is not None:
        assert error["param"] == param
    return error


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"7",
        b"null",
        b"[]",
        b"{",
        b"images=1",
        b'{"images": []}',
        b'{"images": "x"}',
        b'{"images": {}}',
        b"{}",
        b'{"images": ["\xff"]}',
        b'{"images": ' + b"[" * 100000 + b"]" * 100000 + b"}",
    ],
    ids=lambda body: body[:20].decode("latin1"),
)
async def test_malformed_json_is_refused(client: httpx.AsyncClient, body: bytes) -> None:
    refused(await client.post("/encode", content=body, headers=JSON), "invalid_request")


@pytest.mark.parametrize("item", [7, None, True, [], {}, {"url": 5}, {"type": "text", "text": "x"}, {"image_url": {}}])
async def test_an_item_that_is_no_image_is_named(client: httpx.AsyncClient, item: object) -> None:
    answer = await client.post("/encode", json={"images": [GOOD, item]})
    refused(answer, "invalid_request", "images[1]")


@pytest.mark.parametrize(
    "text", ["@@@@", "!!!" + GOOD, "data:image/png;base64,@@", "data:image/png,plain", GOOD[:5], "ä" + GOOD, " "]
)
async def test_base64_that_is_none_is_named(client: httpx.AsyncClient, text: str) -> None:
    refused(await client.post("/encode", json={"images": [GOOD, text]}), "bad_base64", "images[1]")


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1/a.png", "https://host/a", "file:///etc/hostname", "ftp://host/a", "gopher:x"]
)
@pytest.mark.parametrize("form", ["text", "url", "image_url"])
async def test_urls_are_forbidden_in_every_form(client: httpx.AsyncClient, url: str, form: str) -> None:
    item = {"text": url, "url": {"url": url}, "image_url": {"type": "image_url", "image_url": {"url": url}}}[form]
    refused(await client.post("/encode", json={"images": [item]}), "url_forbidden", "images[0]")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("output", "patches"),
        ("dtype", "int8"),
        ("dtype", ["float32"]),
        ("min_pixels", "many"),
        ("max_pixels", -5),
        ("max_pixels", 0),
        ("max_pixels", {}),
        ("max_pixels", True),
        ("background", "#12"),
        ("background", 0),
        ("oversize", "shrug"),
        ("encoding_format", "hex"),
        ("priority", 1.5),
        ("priority", []),
        ("normalize", "perhaps"),
        ("bakground", "white"),
    ],
)
async def test_a_bad_option_is_named(client: httpx.AsyncClient, name: str, value: object) -> None:
    answer = await client.post("/encode", json={"images": [GOOD], name: value})
    assert name in refused(answer, "invalid_request")["message"]


async def test_normalize_with_tokens_and_crossed_limits_are_refused(client: httpx.AsyncClient) -> None:
    for options in ({"normalize": "true"}, {"min_pixels": 500_000, "max_pixels": 100_000}):
        refused(await client.post("/encode", content=picture(), headers=OCTETS, params=options), "invalid_request")


async def test_another_model_is_not_found(client: httpx.AsyncClient) -> None:
    answer = await client.post("/encode", content=picture(), headers=OCTETS, params={"model": "other"})
    refused(answer, "model_not_found", "model")


async def test_other_content_types_and_encodings_are_refused(client: httpx.AsyncClient) -> None:
    refused(await client.post("/encode", content=b"a", headers={"Content-Type": "text/plain"}), "invalid_request")
    packed = OCTETS | {"Content-Encoding": "gzip"}
    refused(await client.post("/encode", content=b"a", headers=packed), "unsupported_type")


async def test_an_aspect_ratio_the_model_refuses_is_422(client: httpx.AsyncClient) -> None:
    refused(await client.post("/encode", content=picture(1, 900), headers=OCTETS), "aspect_ratio", "images[0]")


async def test_without_a_worker_new_work_is_unavailable(client: httpx.AsyncClient, fake: FakeService) -> None:
    fake.pool.is_hopeful = False
    refused(await client.post("/encode", content=picture(), headers=OCTETS), "unavailable")


async def test_before_the_model_is_known_work_is_unavailable_and_live_answers(
    client: httpx.AsyncClient, server: Server
) -> None:
    server.service, server.waits_for = None, "fetching the model"
    refused(await client.post("/encode", content=picture(), headers=OCTETS), "unavailable")
    ready = await client.get("/ready")
    assert ready.status_code == 503 and "fetching the model" in ready.json()["error"]["message"]
    assert (await client.get("/live")).status_code == 200


async def test_while_draining_new_work_is_refused_and_ready_is_off(
    client: httpx.AsyncClient, server: Server, fake: FakeService
) -> None:
    server.is_draining = fake.engine.gate.is_draining = True
    refused(await client.post("/encode", content=picture(), headers=OCTETS), "draining")
    refused(await client.get("/ready"), "draining")


async def test_keys_are_asked_for_on_every_route_that_works(client: httpx.AsyncClient, server: Server) -> None:
    server.keys = ("right",)
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic right"}):
        for route in ("/encode", "/v1/embeddings"):
            refused(await client.post(route, content=b"", headers=headers), "unauthorized")
        refused(await client.get("/info", headers=headers), "unauthorized")
    for route in ("/live", "/ready", "/health"):
        assert (await client.get(route)).status_code == 200
    good = OCTETS | {"Authorization": "Bearer right"}
    assert (await client.post("/encode", content=picture(), headers=good)).status_code == 200


@pytest.mark.parametrize("value", ["soon", "-1", "0", "1.5", "٣"])
async def test_a_timeout_that_is_no_number_is_refused(client: httpx.AsyncClient, value: str) -> None:
    headers = {**OCTETS, "X-Request-Timeout-Ms": value.encode()}
    refused(await client.post("/encode", content=picture(), headers=headers), "invalid_request")


async def test_unknown_routes_and_methods_have_the_same_form(client: httpx.AsyncClient) -> None:
    refused(await client.get("/no/such/route"), "not_found")
    refused(await client.get("/encode"), "method_not_allowed")


MULTIPART = {"Content-Type": "multipart/form-data; boundary=b"}
PART = b'--b\r\nContent-Disposition: form-data; name="i"; filename="f"\r\n\r\n'


@pytest.mark.parametrize(
    ("body", "mime"),
    [
        (PART + picture(), "multipart/form-data; boundary=b"),
        (PART + picture() + b"\r\n--b--\r\n", "multipart/form-data; boundary=other"),
        (PART + picture() + b"\r\n--b--\r\n", "multipart/form-data"),
        (b"", "multipart/form-data; boundary=b"),
        (b"--b--\r\n", "multipart/form-data; boundary=b"),
        (b"--b\r\nContent-Disposition: form-data; name=" + b"x" * 100_000, "multipart/form-data; boundary=b"),
        (b"--b\r\nContent-Type: image/png\r\n\r\nx\r\n--b--\r\n", "multipart/form-data; boundary=b"),
        (b'--b\r\nContent-Disposition: form-data; name="x"\r\n\r\n1\r\n' * 20_000, "multipart/form-data; boundary=b"),
    ],
    ids=["cut off", "another boundary", "no boundary", "empty", "only the end", "long header", "no name", "cut fields"],
)
async def test_lying_multipart_is_refused(client: httpx.AsyncClient, body: bytes, mime: str) -> None:
    refused(await client.post("/encode", content=body, headers={"Content-Type": mime}), "invalid_request")


HUGE = "9" * 400


@pytest.mark.parametrize("sign", ["", "-"])
@pytest.mark.parametrize("name", ["priority", "min_pixels", "max_pixels"])
async def test_numbers_beyond_all_measure_are_refused_and_harm_nobody(
    client: httpx.AsyncClient, name: str, sign: str
) -> None:
    answer = await client.post("/encode", content=picture(), headers=OCTETS, params={name: sign + HUGE})
    refused(answer, "invalid_request", name)
    refused(await client.post("/encode", json={"images": [GOOD], name: sign + HUGE}), "invalid_request", name)
    assert (await client.post("/encode", content=picture(), headers=OCTETS)).status_code == 200


async def test_a_timeout_of_many_digits_is_refused(client: httpx.AsyncClient) -> None:
    for digits in (HUGE, "9" * 5000):
        headers = OCTETS | {"X-Request-Timeout-Ms": digits}
        refused(await client.post("/encode", content=picture(), headers=headers), "invalid_request")


@pytest.mark.parametrize(
    "body",
    [
        b"{" + b",".join(b'"k%d":0' % i for i in range(60_000)) + b',"images":["aGVq"]}',
        b'{"images":[' + b"1," * 120_000 + b"1]}",
    ],
    ids=["keys", "numbers"],
)
async def test_json_of_very_many_values_is_refused_before_it_is_parsed(client: httpx.AsyncClient, body: bytes) -> None:
    error = refused(await client.post("/encode", content=body, headers=JSON), "invalid_request")
    assert "too many JSON values" in error["message"]


async def test_the_first_unknown_option_is_named_whatever_else_is_wrong(client: httpx.AsyncClient) -> None:
    options = {f"unknown{i}": 0 for i in range(1000)} | {"dtype": "int8"}
    refused(await client.post("/encode", json={"images": [GOOD], **options}), "invalid_request", "unknown0")


async def test_very_many_parts_of_one_name_are_refused(client: httpx.AsyncClient) -> None:
    part = b'--b\r\nContent-Disposition: form-data; name="a"\r\n\r\n1\r\n'
    answer = await client.post("/encode", content=part * 5000 + b"--b--\r\n", headers=MULTIPART)
    assert "parts" in refused(answer, "invalid_request")["message"]


@pytest.mark.parametrize("path", ["/live", "/ready", "/health", "/metrics", "/info", "/v1/models"])
async def test_probes_may_ask_for_heads_only(client: httpx.AsyncClient, path: str) -> None:
    assert (await client.head(path)).status_code == 200


async def test_an_accept_of_weight_zero_is_no_wish(client: httpx.AsyncClient) -> None:
    headers = OCTETS | {"Accept": "application/octet-stream;q=0, application/json"}
    answer = await client.post("/encode", content=picture(), headers=headers)
    assert answer.headers["content-type"] == "application/json"


async def test_an_error_names_the_image_by_the_field_that_it_came_in(client: httpx.AsyncClient) -> None:
    good, bad = (base64.b64encode(data).decode() for data in (picture(), b"FAKE BAD"))
    for route, field in (("/encode", "images"), ("/v1/embeddings", "input")):
        answer = await client.post(route, json={field: [good, bad]})
        assert (answer.status_code, answer.json()["error"]["param"]) == (422, f"{field}[1]")
