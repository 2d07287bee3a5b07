"""Message framing over a Unix socket: four bytes of length, then MessagePack.

`Channel` blocks and serves the children; `AsyncChannel` is its twin on the api's loop. End of file means that
the other side is gone: `receive` then returns None, and there is nothing else to clean up.
"""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
import struct
import threading
from typing import Generic, TypeVar

import msgspec

Sent = TypeVar("Sent")
Received = TypeVar("Received")

_LENGTH = struct.Struct("<I")
MAX_MESSAGE_BYTES = 16 << 20
"""Descriptors are small; a longer frame means that the two sides disagree, which is a bug."""


def pack_frame(encoder: msgspec.msgpack.Encoder, message: object) -> bytes:
    """One message as it goes over the wire."""
    body = encoder.encode(message)
    return _LENGTH.pack(len(body)) + body


def frame_length(head: bytes) -> int:
    """Length of the frame that follows, checked."""
    (length,) = _LENGTH.unpack(head)
    if length > MAX_MESSAGE_BYTES:
        raise ConnectionError(f"a frame of {length} bytes was announced: this is a bug")
    return int(length)


class Channel(Generic[Received]):
    """The child's end: blocking, one message at a time. Several threads may send."""

    def __init__(self, sock: socket.socket, receives: type[Received]) -> None:
        self._sock = sock
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(receives)
        self._sending = threading.Lock()

    def send(self, message: object) -> None:
        """Write one message; raises OSError when the parent is gone."""
        with self._sending:
            self._sock.sendall(pack_frame(self._encoder, message))

    def has_message(self) -> bool:
        """True if `receive` would not wait."""
        return bool(select.select([self._sock], [], [], 0)[0])

    def close(self) -> None:
        """End both directions; a `receive` that waits in another thread returns None."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def receive(self) -> Received | None:
        """The next message, or None when the parent is gone."""
        head = self._exactly(_LENGTH.size)
        body = self._exactly(frame_length(head)) if head else b""
        return self._decoder.decode(body) if body else None

    def _exactly(self, length: int) -> bytes:
        parts = bytearray()
        while len(parts) < length:
            try:
                block = self._sock.recv(length - len(parts))
            except ConnectionResetError:
                return b""
            if not block:
                return b""
            parts += block
        return bytes(parts)


class AsyncChannel(Generic[Sent, Received]):
    """The parent's end, on the loop. Writes never wait: a child has few messages outstanding."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, receives: type[Received]) -> None:
        self._reader, self._writer = reader, writer
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(receives)

    @classmethod
    async def over(cls, sock: socket.socket, receives: type[Received]) -> AsyncChannel[Sent, Received]:
        """Wrap one end of a socket pair."""
        reader, writer = await asyncio.open_unix_connection(sock=sock)
        return cls(reader, writer, receives)

    def send(self, message: Sent) -> None:
        """Hand one message to the transport."""
        self._writer.write(pack_frame(self._encoder, message))

    async def receive(self) -> Received | None:
        """The next message, or None when the child is gone."""
        try:
            length = frame_length(await self._reader.readexactly(_LENGTH.size))
            return self._decoder.decode(await self._reader.readexactly(length))
        except (asyncio.IncompleteReadError, ConnectionResetError):
            return None

    def close(self) -> None:
        """Tell the child to end: it sees the end of file."""
        self._writer.close()
