"""A small HTTP/1.1 caller on bare sockets: quick enough to flood with, and able to leave or to stop reading.

An answer's time ends when the kernel received its last byte, as the kernel says (where it does not say, when this
process read it): how late this process then reads it, being busy with other answers, is told apart.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from dataclasses import dataclass

from foveal_client._safetensors import read_container

BINARY = "application/vnd.foveal.safetensors"
BLOCK_BYTES = 1 << 18
_SO_TIMESTAMPING = 37
_STAMP_RECEIVED = 1 << 3 | 1 << 4
"""SOF_TIMESTAMPING_RX_SOFTWARE, to be made, and SOF_TIMESTAMPING_SOFTWARE, to be told: linux/net_tstamp.h."""
_TIMESPEC = struct.Struct("qq")

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
    late: float = 0.0
    """Seconds after `seconds` that this process read it."""

    @property
    def code(self) -> str:
        """The error's code in the body, else nothing."""
        return self.body.partition(b'"code":"')[2].partition(b'"')[0].decode()


class Caller:
    """One connection, used again where it may be."""

    def __init__(self, url: str, *headers: str) -> None:
        self._host, port = url.removeprefix("http://").split(":")
        self._port, self._headers = int(port), headers
        self._socket: socket.socket | None = None
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
        began = time.time()
        try:
            async with asyncio.timeout(leave_after):
                status, body, received = await self._exchange(message)
        except (OSError, TimeoutError, EOFError):
            self.leave()
            return Reply(0, time.time() - began)
        return Reply(status, received - began, body, time.time() - received)

    def leave(self) -> None:
        """Hang up without a word."""
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._socket.close()
        self._socket = None

    async def _exchange(self, message: bytes) -> tuple[int, bytes, float]:
        """Status, body, and when the kernel had received the last of it."""
        sock = self._socket or await self._connect()
        await asyncio.get_running_loop().sock_sendall(sock, message)
        received, stamp, end = bytearray(), 0.0, None
        while end is None or len(received) < end:
            block, stamp = await _receive(sock)
            received += block
            if end is None and (head_end := received.find(b"\r\n\r\n")) >= 0:
                head = bytes(received[:head_end]).lower() + b"\r\n"
                end = head_end + 4 + int(head.partition(b"content-length:")[2].partition(b"\r\n")[0])
        if b"connection: close" in head:
            self.leave()
        return int(head.split(b" ", 2)[1]), bytes(received[head_end + 4 :]), stamp

    async def _connect(self) -> socket.socket:
        self._socket = sock = socket.socket()
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPING, _STAMP_RECEIVED)
        await asyncio.get_running_loop().sock_connect(sock, (self._host, self._port))
        return sock


async def _receive(sock: socket.socket) -> tuple[bytes, float]:
    """The next bytes and when the kernel had the last of them; raises EOFError."""
    loop = asyncio.get_running_loop()
    while True:
        try:
            block, facts, _, _ = sock.recvmsg(BLOCK_BYTES, 256)
            break
        except BlockingIOError:
            readable = loop.create_future()
            loop.add_reader(sock, _settle, readable)
            try:
                await readable
            finally:
                loop.remove_reader(sock)
    if not block:
        raise EOFError("the server closed the connection")
    stamps = [_TIMESPEC.unpack_from(data) for level, kind, data in facts if kind == _SO_TIMESTAMPING]
    seconds, nanoseconds = stamps[-1] if stamps else divmod(time.time_ns(), 1_000_000_000)
    return block, seconds + nanoseconds / 1e9


def _settle(readable: asyncio.Future[None]) -> None:
    if not readable.done():
        readable.set_result(None)


def embedding_of(reply: Reply) -> bytes:
    """The bytes of the one embedding of a 200."""
    return bytes(read_container(reply.body)[0]["image.0"].tobytes())
