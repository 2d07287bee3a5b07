"""The thread that fetches, so that vLLM's scheduler never waits for the network."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future

import httpx

from foveal_client._ec.fetch import Fetcher, Need
from foveal_client._ec.memory import MemoryFile
from foveal_client._ec.settings import PickupSettings
from foveal_client._http import Network


class FetchThread:
    """One event loop on a thread of its own. `start` may be called from any other thread.

    Raises InvalidEnvironment, which is a ValueError, for a proxy that leads to a server and cannot be used.
    """

    def __init__(self, settings: PickupSettings, transport: httpx.AsyncBaseTransport | None = None) -> None:
        network = Network.to(settings.urls) if transport is None else Network()
        self._loop = asyncio.new_event_loop()
        headers = {"User-Agent": "foveal-client-vllm", "Accept-Encoding": "identity"}
        if settings.api_key:
            headers["Authorization"] = f"Bearer {settings.api_key}"
        limits = httpx.Limits(max_connections=settings.max_connections, keepalive_expiry=30.0)
        self._http = network.async_client(transport, headers=headers, limits=limits, follow_redirects=False)
        self._fetcher = Fetcher(settings, self._http)
        self._thread = threading.Thread(target=self._loop.run_forever, name="foveal-fetch", daemon=True)
        self._thread.start()

    def start(self, need: Need) -> Future[MemoryFile]:
        """Begin to fetch; cancelling the future stops it."""
        return asyncio.run_coroutine_threadsafe(self._fetcher.fetch(need), self._loop)

    def close(self) -> None:
        """Stop what is on its way, and end the thread."""
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _stop(self) -> None:
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        self._fetcher.close()
        await self._http.aclose()
