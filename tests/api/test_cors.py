"""Browsers: off by default; with `--cors-origin` a page may ask, send its key, and read answers and errors."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveal.api.app import create_app
from foveal.api.context import Server
from foveal.errors import Overloaded
from foveal.setting_types import web_origin
from foveal.settings import Settings
from tests.api.gateways import CHAT, chat, gateway, text
from tests.fakes import FakeService, picture
from tests.llm import Sent, Writer, fake_llm

PAGE = "https://app.example"
ASKS = {
    "Origin": PAGE,
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization,content-type,x-request-timeout-ms",
}
ROUTES = ["/encode", "/v1/embeddings", "/v1/chat/completions", "/v1/models", "/ready", "/no-such"]


@pytest.fixture(params=[(PAGE,), ("*",)], ids=["one", "all"])
def origins(request: pytest.FixtureRequest) -> tuple[str, ...]:
    return tuple(request.param)


@pytest.fixture
async def page(fake: FakeService, origins: tuple[str, ...]) -> AsyncIterator[httpx.AsyncClient]:
    server = Server(Settings(cors_origin=origins, api_key=["k"]), fake.metrics, ("k",), service=fake.service)  # type: ignore[list-item]
    async with httpx.AsyncClient(transport=httpx.ASGITransport(create_app(server)), base_url="http://foveal") as http:
        yield http


@pytest.mark.parametrize("route", ROUTES)
async def test_it_is_off_until_asked_for(client: httpx.AsyncClient, route: str) -> None:
    for answer in (await client.options(route, headers=ASKS), await client.post(route, headers={"Origin": PAGE})):
        assert not [name for name in answer.headers if name.startswith("access-control")]


@pytest.mark.parametrize("route", ROUTES)
async def test_a_preflight_needs_no_key_and_allows_the_key_to_be_sent(page: httpx.AsyncClient, route: str) -> None:
    answer = await page.options(route, headers=ASKS)
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] in (PAGE, "*")
    assert "authorization" in answer.headers["access-control-allow-headers"].lower()
    assert "POST" in answer.headers["access-control-allow-methods"]
    assert "access-control-allow-credentials" not in answer.headers


async def test_answers_and_errors_of_every_layer_can_be_read(page: httpx.AsyncClient, fake: FakeService) -> None:
    key, data = {"Origin": PAGE, "Authorization": "Bearer k"}, {"Content-Type": "image/png"}
    answers = {
        200: await page.post("/encode", headers=key | data, content=picture()),
        401: await page.post("/encode", headers={"Origin": PAGE}, content=picture()),
        404: await page.get("/no-such", headers=key),
        405: await page.get("/encode", headers=key),
        422: await page.post("/encode", headers=key | data, content=b"FAKE BAD"),
    }
    fake.pool.error = Overloaded("full", retry_after=2)
    answers[503] = await page.post("/encode", headers=key | data, content=picture(text="other"))
    fake.pool.error = ValueError("a bug")  # type: ignore[assignment]
    answers[500] = await page.post("/encode", headers=key | data, content=picture(text="third"))
    for status, answer in answers.items():
        assert answer.status_code == status
        assert answer.headers["access-control-allow-origin"] in (PAGE, "*")
        exposed = answer.headers["access-control-expose-headers"].split(", ")
        assert set(exposed) == {"X-Request-ID", "Server-Timing", "Retry-After"} and "x-request-id" in answer.headers
    assert "retry-after" in answers[503].headers and "server-timing" in answers[200].headers


async def test_another_page_is_told_nothing(page: httpx.AsyncClient, origins: tuple[str, ...]) -> None:
    other = {"Origin": "https://evil.example"}
    answer = await page.get("/ready", headers=other)
    assert ("access-control-allow-origin" in answer.headers) == (origins == ("*",))
    asked = await page.options("/encode", headers=ASKS | other)
    assert asked.status_code == (200 if origins == ("*",) else 400)


async def test_what_an_llm_server_says_of_origins_is_replaced() -> None:
    async def answer(sent: Sent, writer: Writer) -> None:
        head = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nAccess-Control-Allow-Origin: https://evil.example\r\n"
        writer.write(head + b"Access-Control-Allow-Credentials: true\r\n\r\n{}")

    async with fake_llm(answer) as llm:
        async with gateway(llm.url, cors_origin=(PAGE,)) as running:
            found = await running.http.post(CHAT, json=chat(text("hi")), headers={"Origin": PAGE})
            assert found.headers.get_list("access-control-allow-origin") == [PAGE]
            assert "access-control-allow-credentials" not in found.headers
            assert (await running.http.options(CHAT, headers=ASKS)).status_code == 200
        async with gateway(llm.url) as running:
            found = await running.http.post(CHAT, json=chat(text("hi")), headers={"Origin": PAGE})
            assert found.headers["access-control-allow-origin"] == "https://evil.example"


@pytest.mark.parametrize(
    ("given_", "kept"),
    [
        ("https://App.Example", "https://app.example"),
        ("https://a:443", "https://a"),
        ("http://a:80", "http://a"),
        ("http://localhost:5173", "http://localhost:5173"),
        ("http://[::1]:80", "http://[::1]"),
        ("capacitor://localhost", "capacitor://localhost"),
        ("*", "*"),
    ],
)
def test_an_origin_is_kept_as_browsers_send_it(given_: str, kept: str) -> None:
    assert web_origin(given_) == kept and web_origin(kept) == kept


@pytest.mark.parametrize(
    "text",
    ["a", "a.example", "https://", "https://a/", "https://a/x", "https://*.a", "https://a:0", "https://a:99999",
     "https://u:p@a", "null", "file://", "file://a", "https://a?b", "https://a b", "https://ä.example", "//a"],
)  # fmt: skip
def test_what_is_no_origin_is_refused_at_start(text: str) -> None:
    with pytest.raises(ValueError, match="is no origin"):
        Settings(cors_origin=(text,))


def test_all_origins_stand_alone() -> None:
    with pytest.raises(ValueError, match="alone"):
        Settings(cors_origin=("*", PAGE))


@given(st.text(max_size=40))
def test_a_text_is_refused_or_kept_once_and_for_all(text: str) -> None:
    try:
        kept = web_origin(text)
    except ValueError:
        return
    assert web_origin(kept) == kept and not kept.endswith("/")
