"""`Wire`: the network under one HTTP exchange. Here addresses are checked, by the code that connects to them.

The HTTP client asks it for a connection to a host by name. It resolves once, refuses if any address is forbidden,
and connects to those very addresses: no later lookup can lead elsewhere. TLS goes on to check the name.
"""

# ruff: noqa: ASYNC109 (the client prescribes these signatures)
from __future__ import annotations

import ssl
from collections.abc import Iterable

import httpcore

from foveal.errors import UrlFailed
from foveal.fetch.addresses import Address, literal
from foveal.fetch.resolver import Resolve
from foveal.fetch.rules import Rules, canonical, forbidden_address

MAX_ADDRESSES = 4
"""Addresses of a host that are tried."""
CONNECT_SECONDS = 3.0
"""For each of them."""
MAX_HEAD_BYTES = 16 << 10
"""Of an answer, with all interim answers before it."""
HEAD_STEP_BYTES = 4 << 10


class Wire(httpcore.AsyncNetworkBackend):
    """Connects for one exchange; `aclose` closes whatever it opened, however the exchange ended."""

    def __init__(self, rules: Rules, resolve: Resolve, network: httpcore.AsyncNetworkBackend) -> None:
        self._rules, self._resolve, self._network = rules, resolve, network
        self._opened: httpcore.AsyncNetworkStream | None = None
        self._head_bytes = 0
        self._head_is_read = False

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """A connection to one of the host's addresses; raises UrlForbidden, UrlFailed, or httpcore's errors."""
        addresses = await self._checked(host, port)
        last: Exception = UrlFailed("the URL's host has no address", retryable=False)
        for address in addresses[:MAX_ADDRESSES]:
            try:
                stream = await self._network.connect_tcp(
                    str(address), port, timeout=CONNECT_SECONDS, socket_options=socket_options
                )
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                last = error
                continue
            self._opened = stream
            return _Stream(stream, self)
        raise last

    def head_is_read(self) -> None:
        """The answer's head is over; what follows is bounded by whoever reads it."""
        self._head_is_read = True

    def at_most(self, max_bytes: int) -> int:
        """Bytes to read at once: few while a head is read, so that what follows it does not count as head."""
        return max_bytes if self._head_is_read else min(max_bytes, HEAD_STEP_BYTES)

    def count(self, num_bytes: int) -> None:
        """Count what was received; raises UrlFailed for a head without an end."""
        self._head_bytes += num_bytes
        if not self._head_is_read and self._head_bytes > MAX_HEAD_BYTES:
            raise UrlFailed(f"the head of the URL's answer is longer than {MAX_HEAD_BYTES} bytes", retryable=False)

    async def aclose(self) -> None:
        """Close what is open: a client cancelled in the middle of a TLS handshake leaves its socket behind."""
        if self._opened is not None:
            await self._opened.aclose()

    async def _checked(self, host: str, port: int) -> list[Address]:
        """All addresses, none of them forbidden: a host with one bad address may mean any of them."""
        host = canonical(host)
        reach = self._rules.reach(host, port)
        itself = literal(host)
        addresses = [itself] if itself is not None else list(dict.fromkeys(await self._resolve(host)))
        if not all(reach.includes(address) for address in addresses):
            raise forbidden_address()
        return addresses


class _Stream(httpcore.AsyncNetworkStream):
    """A connection whose received bytes are counted."""

    def __init__(self, stream: httpcore.AsyncNetworkStream, wire: Wire) -> None:
        self._stream, self._wire = stream, wire

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """Some bytes; none at the end."""
        received = await self._stream.read(self._wire.at_most(max_bytes), timeout)
        self._wire.count(len(received))
        return received

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Send all of it."""
        await self._stream.write(buffer, timeout)

    async def aclose(self) -> None:
        """Close the connection."""
        await self._stream.aclose()

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.AsyncNetworkStream:
        """The same connection under TLS."""
        return _Stream(await self._stream.start_tls(ssl_context, server_hostname, timeout), self._wire)

    def get_extra_info(self, info: str) -> object:
        """What the client asks of the connection."""
        return self._stream.get_extra_info(info)
