"""The log line of a request says where it failed, how far it came before, and how its images were encoded."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from pydantic import SecretStr

from foveal.api.app import create_app
from foveal.api.context import Server
from foveal.errors import FovealError, Unavailable
from foveal.logs import JsonLines
from foveal.settings import Settings
from tests.fakes import FakeService, fake_service, picture

KEY = "a-key-that-nobody-may-read"
Line = dict[str, Any]


class Watched:
    """A server in process and the lines that it logs."""

    def __init__(self, fake: FakeService, caplog: pytest.LogCaptureFixture, settings: Settings) -> None:
        self.fake, self._caplog = fake, caplog
        self.server = Server(settings, fake.metrics, settings.keys, service=fake.service)
        self.http = httpx.AsyncClient(
            transport=httpx.ASGITransport(create_app(self.server)),
            base_url="http://foveal",
            headers={"Authorization": f"Bearer {KEY}"},
        )

    def lines(self) -> list[Line]:
        records = [record for record in self._caplog.records if record.name == "foveal.requests"]
        return [json.loads(JsonLines().format(record)) for record in records]

    async def line_of(self, **request: Any) -> Line:
        """Of one request to /encode."""
        await self.http.post("/encode", **request)
        return self.lines()[-1]


@pytest.fixture
async def watched(caplog: pytest.LogCaptureFixture) -> Watched:
    caplog.set_level(logging.INFO, "foveal.requests")
    settings = Settings(api_key=(SecretStr(KEY),), max_images_per_request=4, max_body_bytes=1 << 20)
    return Watched(fake_service(max_tokens=16_384), caplog, settings)


def files(*pictures: bytes) -> list[tuple[str, bytes]]:
    return [("file", one) for one in pictures]


async def test_a_good_request_tells_what_it_was_and_no_failure(watched: Watched) -> None:
    await watched.http.post("/encode", content=picture())
    line = await watched.line_of(files=files(picture(), picture(text="other")))
    assert (line["code"], line["images"], line["cached"], line["tokens"]) == ("ok", 2, 1, 140)
    assert {"fetch", "probe", "prep", "queue", "encode", "serialize", "total"} <= set(line)
    assert "failed_in" not in line


async def test_how_packs_ran_is_in_the_line(watched: Watched) -> None:
    encode = watched.fake.pool.encode

    async def told(item: Any, demand: Any) -> Any:
        demand.stages.mode, demand.stages.budget = ("graph", 64) if item.num_tokens < 80 else ("eager", 0)
        return await encode(item, demand)

    watched.fake.pool.encode = told  # type: ignore[method-assign]
    line = await watched.line_of(content=picture())
    assert (line["mode"], line["budgets"]) == ("graph", [64])
    line = await watched.line_of(files=files(picture(text="x"), picture(320, 320)))
    assert (line["mode"], line["budgets"]) == ("mixed", [64])
    assert "mode" not in await watched.line_of(content=picture())  # from the cache


@pytest.mark.parametrize(
    ("request_", "code", "stage", "known"),
    [
        ({"content": b"FAKE BAD"}, "undecodable", "probe", {"fetch"}),
        ({"content": b"{", "headers": {"Content-Type": "application/json"}}, "invalid_request", "parse", {"fetch"}),
        ({"content": b"x" * (1 << 21)}, "too_large", "fetch", {"fetch"}),
        ({"content": b"x", "headers": {"Authorization": "Bearer wrong"}}, "unauthorized", "door", set()),
        ({"content": picture(), "headers": {"X-Request-Timeout-Ms": "soon"}}, "invalid_request", "door", set()),
    ],
    ids=["picture", "json", "body", "key", "deadline"],
)
async def test_a_refusal_tells_where_it_came_from(
    request_: dict[str, Any], code: str, stage: str, known: set[str], watched: Watched
) -> None:
    line = await watched.line_of(**request_)
    assert (line["code"], line["failed_in"]) == (code, stage)
    assert known <= set(line) and all(line[name] >= 0 for name in known)


async def test_the_stage_is_that_of_the_image_that_was_refused(watched: Watched) -> None:
    line = await watched.line_of(files=files(picture(), picture(text="b"), b"FAKE BAD"))
    assert (line["code"], line["param"], line["failed_in"]) == ("undecodable", "images[2]", "probe")


async def test_a_failure_behind_prep_tells_what_was_passed(watched: Watched) -> None:
    for error in (Unavailable("lost twice"), FovealError("a bug")):
        watched.fake.pool.error = error
        line = await watched.line_of(content=picture())
        assert (line["code"], line["failed_in"]) == (error.code, "queue")
        assert line["probe"] > 0 and line["prep"] > 0 and "total" not in line


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not holds():
            await asyncio.sleep(0)


async def test_a_deadline_tells_what_it_passed_in(watched: Watched) -> None:
    watched.fake.pool.gate.clear()
    call = asyncio.create_task(watched.line_of(content=picture(), headers={"X-Request-Timeout-Ms": "1000"}))
    await until(lambda: watched.fake.pool.waiting == 1)
    joined = asyncio.create_task(watched.line_of(content=picture(), headers={"X-Request-Timeout-Ms": "100"}))
    line = await joined
    assert (line["code"], line["failed_in"]) == ("deadline_exceeded", "queue")
    assert line["prep"] > 0  # of the flight that it joined
    watched.fake.pool.gate.set()
    assert (await call)["code"] == "ok"


async def test_no_line_tells_a_key(watched: Watched) -> None:
    await watched.http.post("/encode", content=picture())
    await watched.http.post("/encode", content=b"FAKE BAD")
    await watched.http.get("/info")
    assert len(watched.lines()) == 3 and KEY not in json.dumps(watched.lines())
