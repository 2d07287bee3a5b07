"""A gateway on a real socket over fakes, and its caller."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx
import numpy as np
import torch
import uvicorn

from foveal.api.app import create_app
from foveal.api.context import Server
from foveal.api.protocol import BoundedProtocol
from foveal.settings import Settings
from tests.fakes import FakeService, fake_service, value_of

CHAT = "/v1/chat/completions"


@dataclass
class Running:
    """A gateway, its fakes, and an HTTP client on it."""

    server: Server
    fake: FakeService
    http: httpx.AsyncClient
    port: int

    def outcomes(self) -> dict[str, float]:
        """Those that occurred, counted."""
        family = self.fake.metrics.gateway_requests
        return {
            s.labels["outcome"]: s.value
            for m in family.collect()
            for s in m.samples
            if s.name.endswith("total") and s.value
        }

    def is_empty(self) -> bool:
        metrics = self.fake.metrics
        gauges = (metrics.gateway_open_requests, metrics.inflight_bytes, metrics.inflight_items)
        return not any(value_of(gauge) for gauge in gauges)

    async def ended(self, count: int = 1) -> dict[str, float]:
        """How so many requests ended, once they have, and nothing of them is left."""
        while sum(self.outcomes().values()) < count or not self.is_empty():
            await asyncio.sleep(0)
        return self.outcomes()


@contextlib.asynccontextmanager
async def gateway(*urls: str, fake: FakeService | None = None, **settings: Any) -> AsyncIterator[Running]:
    fake = fake or fake_service()
    made = Settings(llm_url=urls, **settings)
    server = Server(made, fake.metrics, made.keys, service=fake.service)
    config = uvicorn.Config(
        create_app(server), log_config=None, lifespan="off", http=BoundedProtocol, server_header=False, access_log=False
    )
    web = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]
        task = asyncio.create_task(web._serve(sockets=[sock]))
        try:
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False) as http:
                yield Running(server, fake, http, port)
        finally:
            web.should_exit = web.force_exit = True
            await task


def image_part(data: bytes, **more: Any) -> dict[str, Any]:
    text = base64.b64encode(data).decode()
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{text}"}, **more}


def chat(*content: Any, **more: Any) -> dict[str, Any]:
    return {"model": "llm", "messages": [{"role": "user", "content": list(content)}], **more}


def text(words: str) -> dict[str, str]:
    return {"type": "text", "text": words}


def rows_of(part: dict[str, Any]) -> torch.Tensor:
    """As vLLM reads them."""
    archive = base64.b64decode(part["image_embeds"]["image_embeds"], validate=True)
    tensor = torch.load(io.BytesIO(archive), weights_only=True)
    assert isinstance(tensor, torch.Tensor)
    return tensor


def bits(values: torch.Tensor | np.ndarray[Any, Any]) -> bytes:
    array = values if isinstance(values, np.ndarray) else values.contiguous().view(torch.uint8).numpy()
    return array.tobytes()
