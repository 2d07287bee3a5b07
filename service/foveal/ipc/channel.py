"""Message framing over a Unix socket: four bytes of length, then MessagePack.

`Channel` blocks and serves the children; `AsyncChannel` is its twin on the api's loop. End of file means that
the other side is gone: `receive` then returns None, `run` ends, and there is nothing else to clean up.
"""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar, cast

import msgspec

Sent = TypeVar("Sent")
Received = TypeVar("Received")

_LENGTH = struct.Struct("<I")
MAX_MESSAGE_BYTES = 16 << 20
"""Descriptors are small; a longer frame means that the two sides disagree, which is a bug."""
RECEIVE_BYTES = 1 << 16


def pack_frame(encoder: msgspec.msgpack.Encoder, message: object) -> bytes:
    """One message as it goes over the wire."""
    body = encoder.encode(message)
    return _LENGTH.pack(len(body)) + body


class Frames:
    """Cuts what a socket brings, in whatever pieces, into the bodies of frames."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[memoryview]:
        """The frames that these bytes end; raises ConnectionError where an absurd length is announced."""
        data = self._rest + data
        view, start = memoryview(data), 0
        frames: list[memoryview] = []
        while (begin := start + _LENGTH.size) <= len(data):
            (length,) = _LENGTH.unpack_from(data, start)
            if length > MAX_MESSAGE_BYTES:
                raise ConnectionError(f"a frame of {length} bytes was announced: this is a bug")
            if begin + length > len(data):
                break
            frames.append(view[begin : begin + length])
            start = begin + length
        self._rest = data[start:]
        return frames


class Channel(Generic[Received]):
    """The child's end: blocking, one message at a time. Several threads may send, one receives."""

    def __init__(self, sock: socket.socket, receives: type[Received]) -> None:
        self._sock = sock
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(receives)
        self._frames = Frames()
        self._received: deque[memoryview] = deque()
        self._sending = threading.Lock()

    def send(self, message: object) -> None:
        """Write one message; raises OSError when the parent is gone."""
        with self._sending:
            self._sock.sendall(pack_frame(self._encoder, message))

    def has_message(self) -> bool:
        """True if `receive` would not wait."""
        return bool(self._received or select.select([self._sock], [], [], 0)[0])

    def close(self) -> None:
        """End both directions; a `receive` that waits in another thread returns None."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def receive(self) -> Received | None:
        """The next message, or None when the parent is gone."""
        while not self._received:
            try:
                data = self._sock.recv(RECEIVE_BYTES)
            except ConnectionResetError:
                return None
            if not data:
                return None
            self._received += self._frames.feed(data)
        return self._decoder.decode(self._received.popleft())


class AsyncChannel(asyncio.Protocol, Generic[Sent, Received]):
    """The parent's end, on the loop: no task stands between the socket and who is told.

    `opened` is called first, then `received` for each message. What they raise ends the channel and comes out of
    `run`. Writes never wait: a child has few messages outstanding.
    """

    def __init__(
        self, receives: type[Received], opened: Callable[[], None], received: Callable[[Received], None]
    ) -> None:
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(receives)
        self._frames = Frames()
        self._opened, self._on_message = opened, received
        self._transport: asyncio.Transport | None = None
        self._end: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self, sock: socket.socket) -> None:
        """Carry messages over one end of a socket pair until the child is gone."""
        loop: Any = asyncio.get_running_loop()
        try:
            await loop.create_unix_connection(lambda: self, sock=sock)
            await self._end
        finally:
            self.close()

    def send(self, message: Sent) -> None:
        """Hand one message to the transport."""
        if self._transport is not None:
            self._transport.write(pack_frame(self._encoder, message))

    def close(self) -> None:
        """Tell the child to end: it sees the end of file."""
        if self._transport is not None:
            self._transport.close()

    # ------------------------------------------------------------ called by the loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is the loop's now."""
        self._transport = cast(asyncio.Transport, transport)
        try:
            self._opened()
        except Exception as error:
            self._fail(error)

    def data_received(self, data: bytes) -> None:
        """Tell all that came at once."""
        try:
            for frame in self._frames.feed(data):
                if self._end.done():
                    return
                self._on_message(self._decoder.decode(frame))
        except Exception as error:
            self._fail(error)

    def connection_lost(self, exc: Exception | None) -> None:
        """The child is gone, or `close` was called."""
        if not self._end.done():
            self._end.set_result(None)

    def _fail(self, error: Exception) -> None:
        if not self._end.done():
            self._end.set_exception(error)
        self.close()
