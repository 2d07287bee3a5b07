"""deliver=hold with files: what a request is told of a folder that cannot take them, and how that is counted."""

from __future__ import annotations

import base64
import errno
import os
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from foveal.api.app import create_app
from foveal.api.context import Server
from foveal.handover import folder as files
from foveal.handover.storage import SharedStorage
from foveal.settings import Settings
from tests.fakes import FakeService, fake_service, picture


@pytest.fixture
async def fake(tmp_path: Path) -> FakeService:
    made = fake_service(cache_bytes=0)
    made.handover.storage = SharedStorage(tmp_path, 100_000, 600.0, 60.0, made.metrics)
    return made


@pytest.fixture
async def client(fake: FakeService, settings: Settings) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(create_app(Server(settings, fake.metrics, service=fake.service)))
    async with httpx.AsyncClient(transport=transport, base_url="http://foveal") as made:
        yield made
    assert fake.handover.storage is not None
    await fake.handover.storage.close()


async def hold(client: httpx.AsyncClient, *pictures: bytes) -> httpx.Response:
    images = [base64.b64encode(each).decode() for each in pictures]
    return await client.post("/encode", json={"images": images, "deliver": "hold"})


def count(fake: FakeService, outcome: str) -> float:
    return fake.metrics.handover.labels(outcome)._value.get()


def rejections(fake: FakeService) -> float:
    return fake.metrics.admission_rejections.labels("handover")._value.get()


@pytest.mark.parametrize("handover_bytes", [0, 1 << 20], ids=["files only", "files and promises"])
@pytest.mark.parametrize("trouble", ["full folder", "too large", "full disk", "link in the way"])
async def test_images_that_shared_storage_refuses_are_counted_and_not_promised(
    client: httpx.AsyncClient,
    fake: FakeService,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    handover_bytes: int,
    trouble: str,
) -> None:
    fake.handover.promises.max_bytes = handover_bytes
    asked = [picture(text="a"), picture(text="b"), picture(text="a")]
    wanted, code = 503, "overloaded"
    if trouble == "full folder":
        assert (await hold(client, picture(text="old"))).status_code == 200
        fake.handover.storage.max_bytes = 200 + int(fake.handover.storage.shown()["bytes"])  # type: ignore[union-attr]
    elif trouble == "too large":
        fake.handover.storage.max_bytes = 100  # type: ignore[union-attr]
        wanted, code = 413, "too_large"
    elif trouble == "full disk":

        def full(*args: object) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        full.__name__ = "write"
        monkeypatch.setattr(files, "write", full)
    else:
        key = (await client.post("/encode", content=asked[0], headers={"Content-Type": "image/png"})).json()
        (tmp_path / key["data"][0]["key"]).symlink_to(tmp_path)
        code = "unavailable"
    promised, fetches = count(fake, "promised"), len(fake.handover.promises)
    answer = await hold(client, *asked)
    assert (answer.status_code, answer.json()["error"]["code"]) == (wanted, code), answer.text
    assert (count(fake, "refused"), rejections(fake)) == (2, 1)
    assert (count(fake, "promised"), len(fake.handover.promises)) == (promised, fetches)
