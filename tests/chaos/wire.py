"""A small HTTP/1.1 caller on bare sockets: quick enough to flood with, and able to leave or to stop reading."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from foveal_client._safetensors import read_container

BINARY = "application/vnd.foveal.safetensors"


_everyone: list[Caller] = []


async def all_leave() -> None:
    """Hang up every connection of this process, so that no loop ends under one."""
    while _everyone:
        _everyone.pop().leave()
    await asyncio.sleep(0)
    await asyncio.sleep(0)


@dataclass(frozen=True)
class Reply:
    """What came back, and after how many seconds; status 0 when the caller left or the connection broke."""

    status: int
    seconds: float
    body: bytes = b""

    @property
    def code(self) -> str:
        """The error's code in the body, else nothing."""
        return self.body.partition(b'"code":"')[2].partition(b'"')[0].decode()


class Caller:
    """One connection, used again where it may be."""

    def __init__(self, url: str, *headers: str) -> None:
        self._host, port = url.removeprefix("http://").split(":")
        self._port, self._headers = int(port), headers
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        _everyone.append(self)

    async def encode(self, image: bytes, *headers: str, query: str = "", leave_after: float | None = None) -> Reply:
        """POST /encode; a caller who leaves hangs up after so many seconds."""
        lines = [f"POST /encode{query} HTTP/1.1", "Content-Type: image/png", f"Content-Length: {len(image)}"]
        head = "\r\n".join([*lines, f"Accept: {BINARY}", "Host: f", *self._headers, *headers, "", ""])
        return await self.call(head.encode() + image, leave_after)

    async def get(self, path: str) -> Reply:
        """GET a route."""
        return await self.call(f"GET {path} HTTP/1.1\r\nHost: f\r\n\r\n".encode())

    async def call(self, message: bytes, leave_after: float | None = None) -> Reply:
        """Send, and read the answer."""
        began = time.monotonic()
        try:
            async with asyncio.timeout(leave_after):
                status, body = await self._exchange(message)
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            self.leave()
            return Reply(0, time.monotonic() - began)
        return Reply(status, time.monotonic() - began, body)

    def leave(self) -> None:
        """Hang up without a word."""
        if self._streams is not None:
            self._streams[1].transport.abort()
        self._streams = None

    async def _exchange(self, message: bytes) -> tuple[int, bytes]:
        if self._streams is None or self._streams[0].at_eof():
            self.leave()
            self._streams = await asyncio.open_connection(self._host, self._port, limit=1 << 20)
        reader, writer = self._streams
        writer.write(message)
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0])
        body = await reader.readexactly(length)
        if b"connection: close" in head:
            self.leave()
        return int(head.split(b" ", 2)[1]), body


def embedding_of(reply: Reply) -> bytes:
    """The bytes of the one embedding of a 200."""
    return bytes(read_container(reply.body)[0]["image.0"].tobytes())
