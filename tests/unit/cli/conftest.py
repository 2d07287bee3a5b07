"""A server that is a function, pictures of a few bytes, and the command over both."""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import safetensors

from foveal.cli import encode
from foveal.cli.encode_outputs import safetensors_header

GRID = [1, 4, 2]
PICTURES = {"a.png": b"first", "b.JPG": b"second", "below/c.webp": b"third"}


def hash_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


class Server:
    """Answers every picture with two tokens that hold the length of its bytes; bytes that say so are refused."""

    def __init__(self) -> None:
        self.requests: list[httpx.Request] = []
        self.refuse: dict[bytes, tuple[int, str]] = {b"broken": (422, "undecodable")}
        self.model = "m"
        self.revision = "r1"
        self.bfloat16 = False

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        return self.answer(request)

    def answer(self, request: httpx.Request) -> httpx.Response:
        if request.content in self.refuse:
            status, code = self.refuse[request.content]
            return httpx.Response(status, json={"error": {"code": code, "message": "because", "retryable": False}})
        values = np.full((2, 3), len(request.content), np.float32)
        return httpx.Response(
            200, headers={"Content-Type": "application/octet-stream"}, content=self.body(values, request.content)
        )

    def body(self, values: np.ndarray, content: bytes) -> bytes:
        import ml_dtypes

        values = values.astype(ml_dtypes.bfloat16) if self.bfloat16 else values
        about = {
            "sha256": [hash_of(content)],
            "keys": [hash_of(content + self.revision.encode())],
            "levels": [{"name": "main", "start": 0, "stop": 3}],
            "usage": {"images": 1, "patches": 8, "tokens": 2},
            "tokens": [2],
        }
        texts = {"model": self.model, "dtype": values.dtype.name} | {k: json.dumps(v) for k, v in about.items()}
        grid = np.array([GRID], np.int64)
        return safetensors_header([("grid_thw", grid), ("image.0", values)], texts) + grid.tobytes() + values.tobytes()


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for name, content in {**PICTURES, "notes.txt": b"x", ".hidden.png": b"x"}.items():
        path = tmp_path / "photos" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return tmp_path / "photos"


@pytest.fixture
def command(server: Server) -> Callable[..., int]:
    def run(*arguments: object) -> int:
        parser = argparse.ArgumentParser()
        encode.add_parser(parser.add_subparsers())
        args = parser.parse_args(["encode", "--url", "http://host", *map(str, arguments)])
        return encode.run(args, httpx.MockTransport(server))

    return run


def tensors_of(path: Path) -> dict[str, Any]:
    return dict(safetensors.deserialize(path.read_bytes()))


def metadata_of(path: Path) -> dict[str, Any]:
    with safetensors.safe_open(path, "np") as file:
        return file.metadata()
