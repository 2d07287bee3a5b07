"""The OpenAPI document says what is answered: generated requests, right and wrong, find nothing that it lacks."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from foveal.api.app import create_app
from foveal.api.context import Server
from foveal.errors import BY_CODE
from foveal.settings import Settings
from tests.fakes import FakeService, fake_service, picture

schemathesis = pytest.importorskip("schemathesis")
requests = pytest.importorskip("requests")

EXAMPLES = 60
POST = [("/encode", "POST"), ("/v1/embeddings", "POST"), ("/v1/chat/completions", "POST")]
GET = [(path, "GET") for path in ("/live", "/ready", "/health", "/info", "/metrics", "/v1/models")]
GET += [("/v1/models/{model}", "GET"), ("/embeddings/{key}", "GET")]
RIGHT, WRONG = schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE
CASES = [(*route, mode) for route in POST for mode in (RIGHT, WRONG)] + [(*route, RIGHT) for route in GET]


@dataclass
class Api:
    """An application over fakes on a loop of its own, spoken to from outside that loop."""

    runner: asyncio.Runner
    app: FastAPI
    fake: FakeService
    schema: Any

    def send(self, method: str, url: str, headers: Any, body: bytes) -> httpx.Response:
        async def call() -> httpx.Response:
            transport = httpx.ASGITransport(self.app)
            async with httpx.AsyncClient(transport=transport, base_url="http://foveal") as client:
                return await client.request(method, url, headers=headers, content=body)

        return self.runner.run(call())

    def answer(self, case: Any) -> httpx.Response:
        """What a generated case is answered."""
        prepared = requests.Request(**case.as_transport_kwargs(base_url="http://foveal")).prepare()
        body = prepared.body.encode() if isinstance(prepared.body, str) else prepared.body or b""
        return self.send(prepared.method, prepared.url, dict(prepared.headers), body)


@pytest.fixture(scope="module")
def api() -> Iterator[Api]:
    with asyncio.Runner() as runner:

        async def make() -> tuple[FakeService, FastAPI]:
            fake = fake_service()
            return fake, create_app(Server(Settings(max_body_bytes=1 << 20), fake.metrics, service=fake.service))

        fake, app = runner.run(make())
        yield Api(runner, app, fake, schemathesis.openapi.from_dict(app.openapi()))


# a thread of another test may use `random` while a case is drawn, which hypothesis takes for a strategy of ours
@pytest.mark.filterwarnings("ignore::hypothesis.errors.HypothesisDeprecationWarning")
@pytest.mark.slow
@pytest.mark.parametrize(("path", "method", "mode"), CASES, ids=str)
def test_generated_requests_are_answered_as_documented(api: Api, path: str, method: str, mode: Any) -> None:
    operation = api.schema[path][method]

    @settings(
        max_examples=EXAMPLES if method == "POST" else 2,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def run(case: Any) -> None:
        check(api, case)

    run()


def check(api: Api, case: Any) -> None:
    """Status, content type and shape are documented, and no fault is the server's."""
    answer = api.answer(case)
    assert answer.status_code < 500, (case, answer.text)
    if answer.status_code >= 400:
        assert answer.json()["error"]["code"] in BY_CODE
    case.validate_response(answer, excluded_checks=_about_pictures())


def _about_pictures() -> list[Any]:
    """Checks that cannot know whether bytes are a picture, or speak of routes that are another test's."""
    names = {"positive_data_acceptance", "negative_data_rejection", "missing_required_header", "unsupported_method"}
    registry = schemathesis.checks.CHECKS
    return [found for found in registry.get_all() if found.__name__ in names]


GOOD = base64.b64encode(picture()).decode()
ITEMS = st.sampled_from(
    [GOOD, f"data:image/png;base64,{GOOD}", {"url": f"data:,{'%46'}"}, {"data": GOOD}, {"image_url": {"url": GOOD}}]
)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    items=st.lists(ITEMS, min_size=1, max_size=3),
    form=st.sampled_from(["base64", "float"]),
    binary=st.booleans(),
    deliver=st.sampled_from(["answer", "hold"]),
)
def test_pictures_among_them_are_answered_in_the_documented_shape(
    api: Api, items: list[Any], form: str, binary: bool, deliver: str
) -> None:
    case = api.schema["/encode"]["POST"].Case(
        body={"images": items, "encoding_format": form, "deliver": deliver},
        headers={"Accept": "application/vnd.foveal.safetensors" if binary else "application/json"},
        media_type="application/json",
    )
    check(api, case)


def test_what_is_held_of_a_chat_is_answered_and_fetched_in_the_documented_shape(api: Api) -> None:
    content = [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{GOOD}"}}]
    chat = api.schema["/v1/chat/completions"]["POST"].Case(
        body={"messages": [{"role": "user", "content": content}]}, media_type="application/json"
    )
    check(api, chat)
    (key,) = api.answer(chat).json()["ec_transfer_params"]
    fetch = api.schema["/embeddings/{key}"]["GET"].Case(path_parameters={"key": key})
    check(api, fetch)
    assert api.answer(fetch).status_code == 200


def test_every_error_of_the_table_is_documented_with_its_shape(api: Api) -> None:
    document = api.app.openapi()
    for path in ("/encode", "/v1/embeddings"):
        answers = document["paths"][path]["post"]["responses"]
        for code, error in BY_CODE.items():
            assert code in answers[str(error.status)]["description"]
            assert answers[str(error.status)]["content"]["application/json"]["schema"]["required"] == ["error"]


def test_limits_of_numbers_are_in_the_words_of_json_schema(api: Api) -> None:
    (found,) = [p for p in api.app.openapi()["paths"]["/encode"]["post"]["parameters"] if p["name"] == "priority"]
    assert (found["schema"]["minimum"], found["schema"]["maximum"]) == (-1_000_000, 1_000_000)
