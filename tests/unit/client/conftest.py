"""A clock that only moves when told, and answers built by the safetensors library: a writer that is not ours."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt
import pytest
from safetensors.numpy import save

from foveal_client import AsyncClient, Client
from foveal_client._retry import Clock

MEDIA_TYPE = "application/vnd.foveal.safetensors"
Build = Callable[..., bytes]


@dataclass
class FakeTime:
    """Time that passes in sleeps alone; `waits` are their lengths."""

    at: float = 1000.0
    waits: list[float] = field(default_factory=list)

    def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.at += seconds

    async def sleep_async(self, seconds: float) -> None:
        self.sleep(seconds)

    def clock(self) -> Clock:
        return Clock(lambda: self.at, lambda: 0.0, self.sleep, self.sleep_async)


@pytest.fixture
def time() -> FakeTime:
    return FakeTime()


def build_answer(
    arrays: Sequence[npt.NDArray[Any]], *, grids: Sequence[Sequence[int]] | None = None, **metadata: object
) -> bytes:
    """An answer for these arrays; keywords replace metadata, None removes it. Four patches a token by default."""
    tokens = [len(array) if array.ndim == 2 else 1 for array in arrays]
    grids = grids if grids is not None else [(1, 2, 2 * count) for count in tokens]
    said: dict[str, object] = {
        "model": "m",
        "dtype": arrays[0].dtype.name if arrays else "float32",
        "sha256": [hashlib.sha256(bytes([place])).hexdigest() for place in range(len(arrays))],
        "keys": [hashlib.sha256(bytes([place, 1])).hexdigest() for place in range(len(arrays))],
        "levels": [],
        "usage": {"images": len(arrays), "patches": sum(t * h * w for t, h, w in grids), "tokens": sum(tokens)},
        "tokens": tokens,
    }
    said |= metadata
    texts = {k: v if isinstance(v, str) else json.dumps(v) for k, v in said.items() if v is not None}
    tensors = {f"image.{place}": np.ascontiguousarray(array) for place, array in enumerate(arrays)}
    return save(tensors | {"grid_thw": np.array(grids, np.int64).reshape(-1, 3)}, texts)


@pytest.fixture(scope="session")
def build() -> Build:
    return build_answer


@pytest.fixture
def ok() -> Callable[..., httpx.Response]:
    """A 200 with an answer for as many images as asked."""

    def respond(num_images: int = 1, **headers: str) -> httpx.Response:
        body = build_answer([np.full((2, 3), place, np.float32) for place in range(num_images)])
        return httpx.Response(200, headers={"Content-Type": MEDIA_TYPE, **headers}, content=body)

    return respond


@pytest.fixture
def refusal() -> Callable[..., httpx.Response]:
    """An error body of the server's form."""

    def respond(status: int, code: str, retryable: bool = False, **headers: str) -> httpx.Response:
        error = {"code": code, "message": "because", "type": "server_error", "param": None, "retryable": retryable}
        return httpx.Response(status, headers=headers, json={"error": {**error, "request_id": "r-1"}})

    return respond


Handler = Callable[[httpx.Request], httpx.Response]


@dataclass(frozen=True)
class Twin:
    """Either client behind one awaited call: `await twin("encode", handler, b"picture", dtype="float32")`."""

    kind: str
    clock: Clock

    async def __call__(self, method: str, handler: Handler, *args: Any, **keywords: Any) -> Any:
        return await self.made(handler)(method, *args, **keywords)

    def made(self, handler: Handler, **settings: Any) -> Callable[..., Awaitable[Any]]:
        """A call on a client with these constructor arguments."""
        settings = {
            "base_url": "http://host",
            "transport": httpx.MockTransport(handler),
            "clock": self.clock,
        } | settings

        async def call(method: str, *args: Any, **keywords: Any) -> Any:
            if self.kind == "sync":
                with Client(**settings) as client:
                    return getattr(client, method)(*args, **keywords)
            async with AsyncClient(**settings) as awaited:
                return await getattr(awaited, method)(*args, **keywords)

        return call


@pytest.fixture(params=["sync", "async"])
def twin(request: pytest.FixtureRequest, time: FakeTime) -> Twin:
    return Twin(request.param, time.clock())


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine's own server and key must not reach a test."""
    for name in ("FOVEAL_URL", "FOVEAL_API_KEY"):
        monkeypatch.delenv(name, raising=False)
