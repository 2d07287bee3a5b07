"""Connections to LLM servers that hear what is answered while a request is still being sent.

A server that wants no such body says so and closes without reading the rest, which resets the connection. The answer
has come by then, but the first write that fails ends the event loop's hold on it. So the loop reads while it writes,
and a second handle on the socket reads what it left. (Not under TLS, where what was left would need decrypting: there
an answer is lost if the reset overtakes the loop.)
"""

# ruff: noqa: ASYNC109 (the HTTP client prescribes a signature)
from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Iterable
from typing import Any

import httpcore

ANSWERED_SECONDS = 2.0
"""For one piece of a body to be taken by a server that has answered already: some take the rest, some do not read."""
EARLY_BYTES = 64 << 10
"""Of an answer that are kept while the request is sent."""
_FAILED = (httpcore.NetworkError, OSError)


class Network(httpcore.AsyncNetworkBackend):
    """Remembers the connection that it made, so that it can be closed however the request ended."""

    def __init__(self) -> None:
        self._opened: _Stream | None = None

    @property
    def has_sent(self) -> bool:
        """Something was sent: whoever was connected to took it."""
        return self._opened is not None and self._opened.has_sent

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """A connection; raises httpcore's errors."""
        self._opened = _Stream(await httpcore.AnyIOBackend().connect_tcp(host, port, timeout=timeout))
        return self._opened

    async def aclose(self) -> None:
        """Close what was opened."""
        if self._opened is not None:
            await self._opened.aclose()


class _Stream(httpcore.AsyncNetworkStream):
    """Listens from the first write to the first read. All methods raise httpcore's errors."""

    def __init__(self, stream: httpcore.AsyncNetworkStream) -> None:
        self._stream = stream
        self.has_sent = False
        self._early = bytearray()
        self._listener: asyncio.Task[None] | None = None
        self._patience: asyncio.Timeout | None = None
        """Of the write that is under way."""
        self._is_encrypted = False
        self._second: socket.socket | None = None
        """Until something is read after the writing."""

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Write; fails too when an answer is there and what is written is not taken."""
        if self._listener is None:
            self._second = None if self._is_encrypted else _second_handle(self._stream)
            self._listener = asyncio.create_task(self._listen())
        try:
            async with asyncio.timeout(ANSWERED_SECONDS if self._early else None) as self._patience:
                try:
                    await self._stream.write(buffer, timeout)
                finally:
                    self._patience = None
        except TimeoutError:
            raise httpcore.WriteError("answered, and takes no more") from None
        self.has_sent = True

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """What came early, then what comes."""
        await self._end_listening()
        if self._early:
            data = bytes(self._early[:max_bytes])
            del self._early[:max_bytes]
            return data
        try:
            data = await self._stream.read(max_bytes, timeout)
        except _FAILED:
            if left := self._left(max_bytes):
                return left
            raise
        self._close_second()
        return data

    async def aclose(self) -> None:
        """Close at once."""
        try:
            await self._end_listening()
            await self._stream.aclose()
        finally:
            self._close_second()

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.AsyncNetworkStream:
        """The same connection, encrypted from here on."""
        self._is_encrypted = True
        self._stream = await self._stream.start_tls(ssl_context, server_hostname, timeout)
        return self

    def get_extra_info(self, info: str) -> Any:
        """As the stream has it."""
        return self._stream.get_extra_info(info)

    async def _listen(self) -> None:
        while len(self._early) < EARLY_BYTES:
            try:
                data = await self._stream.read(EARLY_BYTES)
            except _FAILED:
                return  # who reads next finds the same
            if not data:
                return
            self._early += data
            if self._patience is not None and self._patience.when() is None:
                self._patience.reschedule(asyncio.get_running_loop().time() + ANSWERED_SECONDS)

    async def _end_listening(self) -> None:
        if self._listener is not None and not self._listener.done():
            self._listener.cancel()
            await asyncio.wait((self._listener,))

    def _left(self, max_bytes: int) -> bytes:
        """What had come when the connection was lost."""
        if self._second is None:
            return b""
        with contextlib.suppress(OSError):  # nothing had come
            return self._second.recv(max_bytes, socket.MSG_DONTWAIT)
        return b""

    def _close_second(self) -> None:
        if self._second is not None:
            self._second.close()
            self._second = None


def _second_handle(stream: httpcore.AsyncNetworkStream) -> socket.socket:
    of_loop = stream.get_extra_info("socket")
    return socket.fromfd(of_loop.fileno(), of_loop.family, of_loop.type)
