"""A small HTTP/1.1 client for one purpose: tens of microseconds a request, so that the server is what is measured.

A general client costs about as much processor time per request as the service itself does beside decoding; on the
same machine that would halve what is there to be measured.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from dataclasses import dataclass, field

import httptools
import orjson

from foveal.bench.serve.payloads import Target

TIMING = re.compile(r"(\w+);dur=([0-9.]+)")
GRACE_SECONDS = 1.0
"""The server is told the timeout as its deadline; its own answer to that is worth waiting for."""
MAX_KEPT_BYTES = 1 << 16
"""Of an error's body, to read its code; answers are counted and thrown away."""
READ_BYTES = 1 << 20
"""Of one read from a socket."""


@dataclass
class Answer:
    """What came back: `code` is "ok", the server's code, or how it failed; "not_sent" is the generator's own fault."""

    code: str
    num_bytes: int = 0
    stages: dict[str, float] = field(default_factory=dict)
    """Milliseconds, from Server-Timing."""


class _Connection(asyncio.BufferedProtocol):
    """One socket, one request at a time.

    Answers of towers are megabytes. So all connections read into the same memory, and of an answer whose length is
    known only the head and the first piece of the body go through the parser: the rest is counted.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self.transport: asyncio.Transport | None = None
        self.is_open = True
        self._waiter: asyncio.Future[Answer] | None = None
        self._begin()

    def _begin(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._timing, self._num_bytes, self._kept = "", 0, bytearray()
        self._length: int | None = None
        self._is_body = False

    def ask(self, request: bytes) -> asyncio.Future[Answer]:
        """Send; the future is settled with the answer."""
        assert self.transport is not None and self._waiter is None, "a connection is asked twice: this is a bug"
        self._begin()
        self._waiter = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        return self._waiter

    def close(self) -> None:
        """Give the connection up."""
        self.is_open = False
        if self.transport is not None:
            self.transport.abort()

    # ------------------------------------------------------------ called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._pool.memory

    def buffer_updated(self, nbytes: int) -> None:
        if self._is_body and self._length is not None:
            self._count_body(nbytes)
            return
        try:
            self._parser.feed_data(self._pool.memory[:nbytes])
        except httptools.HttpParserError:
            self._spoilt()

    def _count_body(self, nbytes: int) -> None:
        self._num_bytes += nbytes
        if self._num_bytes == self._length:
            self.on_message_complete()
        elif self._num_bytes > (self._length or 0):
            self._spoilt()

    def _spoilt(self) -> None:
        self._settle("not_http")
        self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        self._pool.forget(self)
        self._settle("connection_lost")

    # ------------------------------------------------------------ called by the parser

    def on_header(self, name: bytes, value: bytes) -> None:
        match name.lower():
            case b"server-timing":
                self._timing = value.decode("latin-1")
            case b"content-length":
                self._length = int(value)  # the parser has refused what is no number

    def on_headers_complete(self) -> None:
        self._is_body = self._parser.get_status_code() == 200

    def on_body(self, body: bytes) -> None:
        self._num_bytes += len(body)
        if self._parser.get_status_code() != 200 and len(self._kept) < MAX_KEPT_BYTES:
            self._kept += body

    def on_message_complete(self) -> None:
        self._is_body = False
        self.is_open = self.is_open and self._parser.should_keep_alive()
        status = self._parser.get_status_code()
        self._settle("ok" if status == 200 else _code(status, bytes(self._kept)))

    def _settle(self, code: str) -> None:
        if self._waiter is not None and not self._waiter.done():
            stages = {name: float(ms) for name, ms in TIMING.findall(self._timing)}
            self._waiter.set_result(Answer(code, self._num_bytes, stages))
        self._waiter = None


class Pool:
    """Connections to one target, the last used first. At most `limit`; who finds none free waits in order."""

    def __init__(self, target: Target, limit: int) -> None:
        self._target, self._tls = target, ssl.create_default_context() if target.is_tls else None
        self._idle: list[_Connection] = []
        self._seats = asyncio.Semaphore(limit)
        self.memory = memoryview(bytearray(READ_BYTES))
        """What comes is looked at before anything else is read into it."""
        self.num_waits = 0

    async def ask(self, request: bytes) -> Answer:
        """One request and its answer; failures are answers with a code too."""
        self.num_waits += self._seats.locked()
        has_seat = False
        try:
            async with asyncio.timeout(self._target.timeout_seconds + GRACE_SECONDS), self._seats:
                has_seat = True
                return await self._exchange(request)
        except TimeoutError:
            return Answer("timeout" if has_seat else "not_sent")
        except OSError:
            return Answer("no_connection")

    async def _exchange(self, request: bytes) -> Answer:
        connection = self._idle.pop() if self._idle else await self._connect()
        is_whole = False
        try:
            answer = await connection.ask(request)
            is_whole = connection.is_open
            return answer
        finally:
            if is_whole:
                self._idle.append(connection)
            else:
                connection.close()

    async def _connect(self) -> _Connection:
        host, port = self._target.address
        _, connection = await asyncio.get_running_loop().create_connection(
            lambda: _Connection(self), host, port, ssl=self._tls
        )
        return connection

    def forget(self, connection: _Connection) -> None:
        """A connection is gone; idle ones are closed by the server after a while."""
        if connection in self._idle:
            self._idle.remove(connection)

    def close(self) -> None:
        """Close what is idle."""
        for connection in list(self._idle):
            connection.close()


def _code(status: int, body: bytes) -> str:
    try:
        return str(orjson.loads(body)["error"]["code"])
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return f"status_{status}"
