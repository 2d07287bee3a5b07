"""SGLang's side played over real processes: registering, both back ends, keys, the drain."""

from __future__ import annotations

import asyncio
import base64
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import numpy as np
import pytest

from tests.language_server import LanguageServer, data_uri

from .conftest import serving
from .test_encode import noise

PICTURES = [noise(64, 96, 1), noise(200, 130, 2), noise(48, 48, 3)]


class Bootstrap(BaseHTTPRequestHandler):
    """SGLang's register of encoders."""

    urls: list[str]

    def do_POST(self) -> None:
        self.urls.append(self._url("/register_encoder_url"))

    def do_DELETE(self) -> None:
        self.urls.remove(self._url("/unregister_encoder_url"))

    def _url(self, path: str) -> str:
        assert self.path == path
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()
        return str(body["url"])

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def bootstrap() -> Iterator[tuple[str, list[str]]]:
    Bootstrap.urls = []
    with ThreadingHTTPServer(("127.0.0.1", 0), Bootstrap) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}", Bootstrap.urls
        server.shutdown()
        thread.join()


def test_a_registered_encoder_serves_both_back_ends_and_leaves_when_it_drains(bootstrap: tuple[str, list[str]]) -> None:
    register_url, urls = bootstrap
    flags = ("--sglang", "--sglang-register-url", register_url, "--prep-workers", "1", "--token-budgets", "64,128")
    with serving(*flags) as running:
        running.until(lambda: urls == [running.url + "/sglang"])
        asyncio.run(_ask_both_ways(urls[0]))
        running.process.send_signal(signal.SIGTERM)
        running.until(lambda: urls == [])
    assert running.process.returncode == 0


async def _ask_both_ways(url: str) -> None:
    async with httpx.AsyncClient(trust_env=False, timeout=30) as client:
        body = {"images": [base64.b64encode(picture).decode() for picture in PICTURES]}
        answer = await client.post(url.removesuffix("/sglang") + "/encode", json=body)
        expected = [np.frombuffer(base64.b64decode(row["embedding"]), np.float32) for row in answer.json()["data"]]
        for ranks in (0, 2):
            language = LanguageServer([client], ranks, path=url)
            taken = await language.ask([data_uri(picture) for picture in PICTURES])
            language.close()
            assert len(taken) == max(1, ranks)
            for rows, grids in taken:
                np.testing.assert_array_equal(rows.ravel(), np.concatenate(expected))
                assert grids == [row["grid_thw"] for row in answer.json()["data"]]


def test_a_model_that_sglang_does_not_split_is_refused_at_start() -> None:
    command = [sys.executable, "-m", "foveal", "serve", "--sglang", "--model", "builtin:tiny-clip", "--port", "0"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2 and "--language-only" in ended.stderr + ended.stdout
