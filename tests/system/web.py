"""A web server in a thread that is as hostile as its paths say, on raw sockets."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import socket
import struct
import threading
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field

Reader, Writer = asyncio.StreamReader, asyncio.StreamWriter
DRIP_SECONDS = 0.05
_BLOCK = bytes(64 << 10)
_BOMB = gzip.compress(bytes(64 << 20), 6)


@dataclass
class Web:
    """`num_open` connections at the moment; `heads` of all requests so far."""

    picture: bytes
    port: int = 0
    heads: list[str] = field(default_factory=list)
    num_open: int = 0
    num_silent: int = 0
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.new_event_loop)

    def url(self, path: str, host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}{path}"

    def stop(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)

    def run(self, is_up: threading.Event) -> None:
        asyncio.set_event_loop(self.loop)
        server = self.loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port = server.sockets[0].getsockname()[1]
        is_up.set()
        self.loop.run_forever()
        server.close()
        tasks = asyncio.all_tasks(self.loop)
        for task in tasks:
            task.cancel()
        self.loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self.loop.close()

    async def _serve(self, reader: Reader, writer: Writer) -> None:
        self.num_open += 1
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                self.heads.append(head)
                path = head.split()[1].partition("?")[0]
                await self._answer(path, head.split()[1].partition("?")[2], reader, writer)
        finally:
            self.num_open -= 1
            writer.close()

    async def _answer(self, path: str, query: str, reader: Reader, writer: Writer) -> None:
        plain: dict[str, bytes] = {
            "/picture": answer(self.picture),
            "/html": answer(b"<!DOCTYPE html><html><body>no picture</body></html>", "Content-Type: image/png"),
            "/empty": answer(b""),
            "/loop": answer(b"", "Location: /loop", status=302),
            "/to": answer(b"", f"Location: {query}", status=307),
            "/404": answer(b"gone", status=404),
            "/503": answer(b"busy", status=503),
            "/garbage": b"\x00\x01garbage\r\n\r\n" * 100,
            "/short": answer(self.picture, length=10),
            "/long": answer(self.picture, length=len(self.picture) + 1000),
            "/gzip": answer(gzip.compress(self.picture), "Content-Encoding: gzip"),
            "/bomb": answer(_BOMB, "Content-Encoding: gzip"),
            "/nothing": b"",
        }
        strange: dict[str, Callable[[Reader, Writer], Awaitable[None]]] = {
            "/silent": self._silent,
            "/drip": self._drip,
            "/endless": self._endless,
            "/headless": self._headless,
            "/reset": self._reset,
            "/huge": self._huge,
        }
        if path in strange:
            await strange[path](reader, writer)
        else:
            writer.write(plain[path])
            await writer.drain()

    async def _silent(self, reader: Reader, writer: Writer) -> None:
        self.num_silent += 1
        try:
            await reader.read()
        finally:
            self.num_silent -= 1

    async def _drip(self, reader: Reader, writer: Writer) -> None:
        writer.write(answer(b"", length=10_000))
        for byte in self.picture:
            writer.write(bytes([byte]))
            await writer.drain()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(asyncio.ensure_future(reader.read())), DRIP_SECONDS)
                return

    async def _endless(self, reader: Reader, writer: Writer) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while True:
            writer.write(b"%x\r\n%s\r\n" % (len(_BLOCK), _BLOCK))
            await writer.drain()

    async def _headless(self, reader: Reader, writer: Writer) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n")
        while True:
            writer.write(b"X-Filler: " + b"a" * 1000 + b"\r\n")
            await writer.drain()

    async def _reset(self, reader: Reader, writer: Writer) -> None:
        sock = writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()

    async def _huge(self, reader: Reader, writer: Writer) -> None:
        writer.write(answer(b"", length=1 << 40))
        await reader.read()


def answer(body: bytes, *headers: str, status: int = 200, length: int | None = None) -> bytes:
    lines = [f"HTTP/1.1 {status} Whatever", f"Content-Length: {len(body) if length is None else length}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


@contextlib.contextmanager
def hostile_web(picture: bytes) -> Iterator[Web]:
    web, is_up = Web(picture), threading.Event()
    thread = threading.Thread(target=web.run, args=(is_up,))
    thread.start()
    is_up.wait()
    try:
        yield web
    finally:
        web.stop()
        thread.join()
