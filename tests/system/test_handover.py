"""What is held for an LLM server, through the real processes: kept, fetched, expired, drained, published."""

from __future__ import annotations

import base64
import json
import shutil
import signal
import socket
import threading
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import numpy as np
import pytest
import safetensors.numpy

from foveal.handover.folder import FILE
from foveal_client import Client, Held

from .conftest import Running, serving, start
from .test_encode import noise

FLAGS = ("--cpu-workers", "1", "--prep-workers", "1", "--token-budgets", "64,256", "--cache-bytes", "0")
BUILTIN = Path(__file__).parents[2] / "service/foveal/builtin"


def fetch(server: Running, held: Held, method: str = "GET") -> httpx.Response:
    return httpx.request(method, f"{server.url}/embeddings/{held.key}", trust_env=False)


def test_what_is_held_is_fetched_bit_for_bit_and_once() -> None:
    with serving(*FLAGS) as server, Client(server.url) as client:
        shots = [noise(80, 120, 1), noise(300, 200, 2)]
        held, plain = client.hold(shots), client.encode(shots)
        for one, embedding in zip(held, plain, strict=True):
            assert (one.key, one.grid_thw, one.shape) == (embedding.key, embedding.grid_thw, embedding.shape)
            head, got = fetch(server, one, "HEAD"), fetch(server, one)
            assert (head.status_code, got.status_code) == (200, 200)
            assert int(head.headers["content-length"]) == len(got.content)
            assert safetensors.numpy.load(got.content)["ec_cache"].tobytes() == embedding.values.tobytes()
            assert fetch(server, one).status_code == 404
        assert server.gauge("foveal_handover_total", 'outcome="fetched"') == 2
        server.until(server.is_empty)
        limits = server.info()["limits"]
        room = sum(limits[name] for name in ("max_inflight_bytes", "cache_bytes", "handover_bytes"))
        assert server.gauge("foveal_arena_size_bytes", 'arena="embeddings"') == room


def test_a_fetch_that_breaks_off_leaves_the_promise(tmp_path: Path) -> None:
    wide = shutil.copytree(BUILTIN / "tiny", tmp_path / "wide")
    config = json.loads((wide / "config.json").read_text())
    config["vision_config"]["out_hidden_size"] = 8192  # rows that no socket's buffers hold
    (wide / "config.json").write_text(json.dumps(config))
    with serving(*FLAGS, "--model", str(wide), "--load-format", "dummy") as server, Client(server.url) as client:
        held = client.hold(noise(400, 400, 9))
        address = urlsplit(server.url)
        with socket.create_connection((address.hostname, address.port)) as caller:
            caller.sendall(f"GET /embeddings/{held.key} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            assert caller.recv(1024).startswith(b"HTTP/1.1 200")
        server.until(lambda: server.metric("foveal_inflight_bytes") == 0)
        got = fetch(server, held)
        assert got.status_code == 200
        assert safetensors.numpy.load(got.content)["ec_cache"].shape == held.shape
        assert server.gauge("foveal_handover_total", 'outcome="fetched"') == 1


def test_a_promise_ends_with_its_time_and_gives_its_memory_back() -> None:
    with serving(*FLAGS, "--handover-seconds", "1") as server, Client(server.url) as client:
        held = client.hold(noise(80, 120, 1))
        server.until(lambda: server.metric("foveal_handover_entries") == 0)
        assert server.gauge("foveal_handover_total", 'outcome="expired"') == 1
        assert server.gauge("foveal_arena_bytes", 'arena="embeddings"') == 0
        assert "--handover-seconds" in fetch(server, held).json()["error"]["message"]


def test_a_server_that_drains_waits_for_what_it_promised() -> None:
    with serving(*FLAGS, "--drain-seconds", "60") as server, Client(server.url, max_retries=0) as client:
        first, second = client.hold([noise(80, 120, 1), noise(80, 120, 2)])
        server.process.send_signal(signal.SIGTERM)
        server.until(lambda: httpx.get(server.url + "/ready", trust_env=False).status_code == 503)
        assert fetch(server, first).status_code == 200
        assert server.process.poll() is None
        refused = httpx.post(server.url + "/encode?deliver=hold", content=noise(80, 120, 3), trust_env=False)
        assert refused.json()["error"]["code"] == "draining"
        assert fetch(server, second).status_code == 200
        assert server.process.wait(30) == 0


def test_published_files_are_whole_before_the_answer_and_outlive_the_server(tmp_path: Path) -> None:
    flags = (*FLAGS, "--ec-shared-storage", str(tmp_path), "--handover-bytes", "0")
    shots = [noise(64 + 8 * i, 96, i) for i in range(6)]
    with serving(*flags) as server, Client(server.url) as client:
        torn: list[str] = []
        done = threading.Event()
        reader = threading.Thread(target=_read_all, args=(tmp_path, done, torn))
        reader.start()
        held = [client.hold(shot) for shot in shots]
        for one, shot in zip(held, shots, strict=True):
            rows = safetensors.numpy.load_file(tmp_path / one.key / FILE)["ec_cache"]
            assert rows.tobytes() == client.encode(shot).values.tobytes()
            assert fetch(server, one).status_code == 404  # by file only
        done.set()
        reader.join()
        assert torn == []
    with serving(*flags, "--ec-shared-storage-seconds", "120") as server:
        assert server.info()["handover"]["shared_storage"]["entries"] == len(shots)


def _read_all(folder: Path, done: threading.Event, torn: list[str]) -> None:
    while not done.wait(0.001):
        for path in folder.glob(f"*/{FILE}"):
            try:
                assert np.isfinite(safetensors.numpy.load_file(path)["ec_cache"]).all()
            except Exception as error:
                torn.append(repr(error))


@pytest.mark.parametrize("missing", [True, False])
def test_shared_storage_that_cannot_be_written_is_refused_at_start(tmp_path: Path, missing: bool) -> None:
    folder = tmp_path / "file"
    if not missing:
        folder.touch()
    server = start(*FLAGS, "--ec-shared-storage", str(folder))
    assert server.process.wait(60) == 2
    assert any("--ec-shared-storage" in line and "no such folder" in line for line in server.lines)


def test_the_encoder_of_a_proxy_gives_names_and_grids() -> None:
    with serving(*FLAGS) as server, Client(server.url) as client:
        plain = client.encode(data := noise(300, 200, 4))
        part = {"type": "image_url", "image_url": {"url": "data:;base64," + base64.b64encode(data).decode()}}
        chat = {"messages": [{"role": "user", "content": [{"type": "text", "text": "?"}, part]}]}
        answer = httpx.post(server.url + "/v1/chat/completions", json=chat, trust_env=False).json()
        held = answer["ec_transfer_params"][plain.key]
        assert held["metadata"] == {"image_grid_thw": list(plain.grid_thw)}
        got = httpx.get(f"{server.url}/embeddings/{plain.key}", trust_env=False).content
        assert safetensors.numpy.load(got)["ec_cache"].tobytes() == plain.values.tobytes()
