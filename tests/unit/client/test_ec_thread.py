"""The thread that fetches."""

from __future__ import annotations

import threading

import httpx
import numpy as np
from safetensors.numpy import save

from foveal_client._ec.fetch import Need
from foveal_client._ec.settings import PickupSettings
from foveal_client._ec.thread import FetchThread

KEY = "ab" * 32
NEED = Need(KEY, (1, 4, 6), 8, 2)


def test_a_fetch_ends_on_its_own_thread_and_carries_the_key_of_the_server() -> None:
    asked = []
    content = save({"ec_cache": np.ones((6, 8), np.float32), "grid_thw": np.array([[1, 4, 6]], np.int64)}, {"key": KEY})

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append((threading.current_thread().name, request.headers["authorization"]))
        return httpx.Response(200, content=content)

    thread = FetchThread(PickupSettings.of({"url": "http://x", "api_key": "secret"}), httpx.MockTransport(answer))
    assert thread.start(NEED).result(timeout=30).num_bytes == len(content)
    assert asked == [("foveal-fetch", "Bearer secret")]
    thread.close()


def test_closing_stops_what_is_on_its_way() -> None:
    begun = threading.Event()

    def answer(request: httpx.Request) -> httpx.Response:
        begun.set()
        return httpx.Response(404)

    thread = FetchThread(PickupSettings.of({"url": "http://x"}), httpx.MockTransport(answer))
    future = thread.start(NEED)
    assert begun.wait(timeout=30)
    thread.close()
    assert future.cancelled()
