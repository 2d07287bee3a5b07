"""Sends rows to SGLang's sockets over ZeroMQ, out of the memory that the worker wrote them into."""

from __future__ import annotations

import asyncio
import logging
import weakref

import zmq
import zmq.asyncio

from foveal.errors import Overloaded, UrlFailed
from foveal.fetch.addresses import Address
from foveal.ipc.arena import Bytes

log = logging.getLogger(__name__)

MAX_PUSHES = 256
"""At once; the others wait behind them."""
MAX_SOCKETS = 4096
"""Those that still hand their last bytes to the kernel included."""
CONNECT_SECONDS = 10.0
"""For a socket that is named before it listens; ZeroMQ tries again all the while."""
LINGER_MILLISECONDS = 5000
"""For the last bytes of a message whose receiver reads slowly, after its memory has been let go."""


class Pusher:
    """One socket for each message: nothing queues behind another's, and what fails is gone with it."""

    def __init__(self, connect_seconds: float = CONNECT_SECONDS) -> None:
        self._connect_seconds = connect_seconds
        self._context = zmq.asyncio.Context()
        self._context.set(zmq.MAX_SOCKETS, MAX_SOCKETS)
        self._seats = asyncio.Semaphore(MAX_PUSHES)

    async def push(self, address: Address, port: int, head: bytes, rows: Bytes | None) -> None:
        """Send one message, and return when ZeroMQ has handed `rows` to the kernel and needs them no longer.

        Raises UrlFailed when nobody takes it, Overloaded when there are no sockets left. Cancelled, it drops the
        message.
        """
        async with self._seats:
            try:
                socket = self._context.socket(zmq.PUSH)
            except zmq.ZMQError as error:
                raise Overloaded(f"no socket is free to push embeddings: {error}; try again", retry_after=1.0) from None
            linger = 0
            try:
                socket.setsockopt(zmq.SNDHWM, 1)
                socket.setsockopt(zmq.IMMEDIATE, 1)  # a message is not queued before somebody takes it
                socket.setsockopt(zmq.IPV6, int(address.version == 6))
                socket.connect(f"tcp://[{address}]:{port}" if address.version == 6 else f"tcp://{address}:{port}")
                sent = await self._send(socket, f"{address}:{port}", head, rows)
                await sent.wait()
                linger = LINGER_MILLISECONDS
            finally:
                socket.close(linger=linger)

    async def _send(self, socket: zmq.asyncio.Socket, where: str, head: bytes, rows: Bytes | None) -> asyncio.Event:
        """Queue the message; the event is set when its rows have been sent."""
        sent = asyncio.Event()
        message: list[bytes | zmq.Frame] = [head]
        if rows is None:
            sent.set()
        else:
            message.append(_lent(rows, sent))
        try:
            async with asyncio.timeout(self._connect_seconds):
                await socket.send_multipart(message, copy=False)
        except TimeoutError:
            raise UrlFailed(f"nobody takes embeddings at {where}; is the language server still there?") from None
        return sent

    def close(self) -> None:
        """End all sockets; what they have not sent is dropped."""
        self._context.destroy(linger=0)


def _lent(rows: Bytes, sent: asyncio.Event) -> zmq.Frame:
    """The rows as a frame without a copy; sets `sent` when ZeroMQ lets them go, in whichever thread that is."""
    loop = asyncio.get_running_loop()
    lent = rows[:]  # an array of its own that lives as long as the frame

    def let_go() -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(sent.set)

    weakref.finalize(lent, let_go).atexit = False
    return zmq.Frame(lent.data, copy=False)
