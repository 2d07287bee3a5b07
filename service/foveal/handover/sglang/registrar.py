"""Tells language servers that this encoder is there, and at the end that it is not (SGLang's encoder bootstrap)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

import httpx

from foveal.errors import ConfigurationError
from foveal_client import InvalidEnvironment
from foveal_client._http import Network

log = logging.getLogger(__name__)

RENEW_SECONDS = 30.0
"""A language server that was restarted knows of no encoder: it is told again. To one that knows it says nothing new."""
RETRY_SECONDS = 2.0
REQUEST_SECONDS = 5.0
LEAVE_SECONDS = 2.0
GRACE_SECONDS = 1.0
"""After leaving, for what the language server had under way to us."""


class Registrar:
    """Registers one public URL with each bootstrap server, again and again while this server is ready.

    They are neighbours: no proxy is asked. Raises ConfigurationError for certificates that cannot be used.
    """

    def __init__(
        self,
        register_urls: Sequence[str],
        public_url: str,
        transport: httpx.AsyncBaseTransport | None = None,
        renew_seconds: float = RENEW_SECONDS,
        retry_seconds: float = RETRY_SECONDS,
        grace_seconds: float = GRACE_SECONDS,
    ) -> None:
        self._urls, self._public_url = register_urls, public_url
        self._transport = transport
        try:
            self._network = Network.straight_to(register_urls)
        except InvalidEnvironment as error:
            raise ConfigurationError(str(error)) from None
        self._renew_seconds, self._retry_seconds, self._grace_seconds = renew_seconds, retry_seconds, grace_seconds
        self._is_known: dict[str, bool] = {}

    async def run(self, is_ready: Callable[[], bool]) -> None:
        """Until cancelled. While this server is not ready, nobody is sent here."""
        async with self._client(REQUEST_SECONDS) as client, asyncio.TaskGroup() as group:
            for url in self._urls:
                group.create_task(self._keep(client, url, is_ready))

    async def leave(self) -> None:
        """Have every bootstrap server forget this one, and wait a moment for what is on its way."""
        async with self._client(LEAVE_SECONDS) as client:
            await asyncio.gather(*(self._leave(client, url) for url in self._urls))
        await asyncio.sleep(self._grace_seconds)

    async def _keep(self, client: httpx.AsyncClient, url: str, is_ready: Callable[[], bool]) -> None:
        while True:
            is_known = is_ready() and await self._join(client, url)
            await asyncio.sleep(self._renew_seconds if is_known else self._retry_seconds)

    async def _join(self, client: httpx.AsyncClient, url: str) -> bool:
        failure = await self._ask(client, "POST", f"{url}/register_encoder_url")
        is_known = failure is None
        if self._is_known.get(url) != is_known:  # said once, not at every try
            self._is_known[url] = is_known
            if is_known:
                log.info("registered with SGLang", extra={"bootstrap": url})
            else:
                log.warning("SGLang cannot be told of this encoder", extra={"bootstrap": url, "why": failure})
        return is_known

    async def _leave(self, client: httpx.AsyncClient, url: str) -> None:
        failure = await self._ask(client, "DELETE", f"{url}/unregister_encoder_url")
        if failure is None:
            log.info("unregistered with SGLang", extra={"bootstrap": url})
        else:
            log.warning("SGLang still counts on this encoder", extra={"bootstrap": url, "why": failure})

    async def _ask(self, client: httpx.AsyncClient, method: str, url: str) -> str | None:
        """None if it was done, else why not."""
        try:
            answer = await client.request(method, url, json={"url": self._public_url})
        except httpx.HTTPError as error:
            return f"{type(error).__name__}: {error}"
        return None if answer.status_code == 200 else f"answered {answer.status_code}"

    def _client(self, seconds: float) -> httpx.AsyncClient:
        return self._network.async_client(self._transport, timeout=seconds)
