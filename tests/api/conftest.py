"""A whole api in process: httpx on ASGI, over fakes."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest

from foveal.api.app import create_app
from foveal.api.context import Server
from foveal.settings import Settings
from tests.fakes import FakeService, fake_service


@pytest.fixture
async def fake() -> FakeService:
    return fake_service()


@pytest.fixture
def settings() -> Settings:
    return Settings(max_images_per_request=4, max_body_bytes=1 << 20)


@pytest.fixture
async def server(fake: FakeService, settings: Settings) -> Server:
    return Server(settings, fake.metrics, service=fake.service)


@pytest.fixture
async def client(server: Server) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(create_app(server))
    async with httpx.AsyncClient(transport=transport, base_url="http://foveal") as http:
        yield http
