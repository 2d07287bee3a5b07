"""Bytes and milliseconds of each way: end to end on a large picture, and the transport alone at a real model's size."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path as FilePath
from typing import Any

import httpx
import ml_dtypes
import numpy as np
import torch
from safetensors.numpy import save

from foveal_client._ec.fetch import FILE, Fetcher, Need
from foveal_client._ec.memory import read_rows
from foveal_client._ec.settings import PickupSettings
from foveal_client._vllm import image_embeds_part
from tests.e2e.asking import ask, body
from tests.e2e.paths import Row, by_key, embedded
from tests.e2e.pictures import as_urls, messages, picture

SIZE = (1024, 1024)
REPEATS = 5
ROWS, WIDTH, REAL_GRID = 2040, 16384, (1, 68, 120)
"""A 1080p picture for Qwen3-VL-8B: 66.8 MB in bfloat16."""
KEY = "5a" * 32


def measure(configuration: str, vllm: str, by_http: str, by_file: str) -> Iterator[Row]:
    """A first token for one large picture, encoded before the clock starts."""
    ways: dict[str, Callable[[list[bytes]], list[dict[str, Any]]]] = {
        "vLLM's own tower": as_urls,
        "part (JSON, base64)": embedded(by_http),
        "key, HTTP": by_key(by_http),
        "key, shared storage": by_key(by_file),
    }
    for name, parts in ways.items():
        seconds, sent = [], 0
        for number in range(REPEATS + 1):
            made = parts([picture(0, f"{name} {number}", SIZE)])
            asked = messages([[0]], "", lambda _, made=made: made)  # type: ignore[misc]
            sent = len(json.dumps(body(asked)))
            begun = time.monotonic()
            ask(vllm, asked, max_tokens=1)
            seconds.append(time.monotonic() - begun)
        note = f"{statistics.median(seconds[1:]) * 1000:.0f} ms to the first token, request of {sent} bytes"
        yield Row(configuration, "measure", name, "", note)


def transports() -> Iterator[Row]:
    """Sender and receiver together, without vLLM: until the rows are a tensor of the receiver's."""
    values = np.random.default_rng(0).standard_normal((ROWS, WIDTH), np.float32).astype(ml_dtypes.bfloat16)
    file = save({"ec_cache": values, "grid_thw": np.array([REAL_GRID], np.int64)}, {"key": KEY})
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder, _serving(file) as url:
        (FilePath(folder) / KEY).mkdir()
        (FilePath(folder) / KEY / FILE).write_bytes(file)
        ways: dict[str, Callable[[], int]] = {
            "part (JSON, base64)": lambda: _by_json(values),
            "key, HTTP": lambda: _by_fetch({"url": url}),
            "key, shared memory": lambda: _by_fetch({"shared_storage_path": folder}),
        }
        for name, way in ways.items():
            seconds, worked = [], []
            for _ in range(REPEATS):
                begun, working = time.monotonic(), time.process_time()
                num_bytes = way()
                seconds.append(time.monotonic() - begun)
                worked.append(time.process_time() - working)
            cpu, wall = statistics.median(worked) * 1000, statistics.median(seconds) * 1000
            note = f"{cpu:.0f} ms of CPU, {wall:.0f} ms passed, {num_bytes / 1e6:.1f} MB moved"
            yield Row("transport, 66.8 MB", "measure", name, "", note)


def _by_json(values: np.ndarray) -> int:
    sent = json.dumps(image_embeds_part(values, REAL_GRID, KEY)).encode()
    text = json.loads(sent)["image_embeds"]["image_embeds"]
    found = torch.load(io.BytesIO(base64.b64decode(text)), weights_only=True)
    assert found.shape == values.shape
    return len(sent)


def _by_fetch(extra: dict[str, Any]) -> int:
    async def fetch() -> int:
        async with httpx.AsyncClient(trust_env=False) as http:
            file = await Fetcher(PickupSettings.of(extra), http).fetch(Need(KEY, REAL_GRID, WIDTH, 2))
        rows = torch.from_numpy(read_rows(file.path).view(np.int16)).view(torch.bfloat16).clone()
        assert rows.shape == (ROWS, WIDTH)
        return file.num_bytes

    return asyncio.run(fetch())


@contextmanager
def _serving(content: bytes) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
