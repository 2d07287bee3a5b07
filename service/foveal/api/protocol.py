"""uvicorn's HTTP protocol with bounds on what comes around a body: heads, trailers, and the time that a head takes.

Bodies are bounded where they are read. What a caller sends around them is parsed before any route sees it, so it is
bounded here: 64 KiB of head, as much of trailers (which are dropped), 30 seconds for a head to be whole.

This server changes to no other protocol, and RFC 9110 (7.8) lets it ignore the wish. The parser does not: it would skip
the body. So a head that asks for it is parsed once more, by a new parser and without its `Upgrade`. The parser itself
says which heads these are and where they end: it does not matter how the network cut them, and no other request pays.
"""

from __future__ import annotations

import asyncio
import time

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES = 64 << 10
HEAD_SECONDS = 30.0
LINGER_SECONDS = 2.0
"""After a refusal: closed at once, what the caller still sends would reset the connection and lose the answer."""
MAX_JOINED_BYTES = 16 << 10
"""Of a body's first part that is copied behind its head."""
_TOO_LONG = b"HTTP/1.1 431 Request Header Fields Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
_MALFORMED = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class BoundedProtocol(HttpToolsProtocol):
    """Counts bytes outside bodies; `scope["foveal.transport"]` lets a response watch and drop its connection,
    `scope["foveal.arrival"]` is when the request began.
    """

    _is_in_head = True
    _is_refused = False
    _counted = 0
    """Bytes of head, or of trailers."""
    _unparsed = 0
    """Bytes since the parser last made something of them."""
    _arrival = 0.0
    """When the first byte of the request was parsed."""
    _head_timer: asyncio.TimerHandle | None = None
    _is_again = False
    """True while a head is parsed for the second time."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A connection that never sends a head does not stay."""
        super().connection_made(transport)
        self._time_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing to wait for any more."""
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse, then drop a connection whose head or trailers have no end."""
        if self._is_refused:
            return
        self._unparsed += len(data)
        self._unset_keepalive_if_required()
        try:
            self._parse(data)
        except httptools.HttpParserError:
            self.logger.warning("Invalid HTTP request received.")
            self.send_400_response("")
        if max(self._counted, self._unparsed) > MAX_HEAD_BYTES and not self.transport.is_closing():
            if self._is_in_head:
                self._refuse(_TOO_LONG)
            else:
                self.transport.abort()

    def _parse(self, data: bytes | memoryview) -> None:
        """Feed the parser; where it stops at a head that asks for another protocol, go on behind it."""
        while True:
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as stop:
                data = memoryview(data)[stop.args[0] :]
                self._parse_again()
            else:
                return

    def _parse_again(self) -> None:
        """Give the head that was just parsed to a new parser, without its `Upgrade`."""
        target = b"%s %s HTTP/%s" % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())
        lines = [target, *(b"%s: %s" % header for header in self.headers if header[0] != b"upgrade"), b"", b""]
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does
        self._is_again = True
        try:
            self.parser.feed_data(b"\r\n".join(lines))
        finally:
            self._is_again = False

    def send_400_response(self, msg: str) -> None:
        """A head that is too long, or no HTTP."""
        self._refuse(_TOO_LONG if self._counted > MAX_HEAD_BYTES else _MALFORMED)

    def on_message_begin(self) -> None:
        """A head begins."""
        self._is_in_head, self._counted, self._unparsed = True, 0, 0
        if not self._is_again:
            self._arrival = time.monotonic()
            self._time_head()
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """Part of the request line."""
        self._count(url)
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header; one that follows the body is a trailer, which nobody reads."""
        self._count(name + value)
        if self._is_in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The head has ended. One that came whole but too long is malformed: uvicorn answers 400 and closes."""
        if self._counted > MAX_HEAD_BYTES:
            raise ValueError("the request head is too long")
        if self.parser.should_upgrade():
            if self.parser.get_method() == b"CONNECT":
                raise ValueError("this server is no tunnel")
            return  # the parser stops here, and `_parse` goes on
        self._is_in_head, self._counted, self._unparsed = False, 0, 0
        self._stop_timer()
        super().on_headers_complete()
        self.cycle.transport = HeadWithBody(self.transport, self.loop)  # type: ignore[assignment]
        self.scope["foveal.arrival"] = self._arrival  # type: ignore[typeddict-unknown-key]
        self.scope["foveal.transport"] = self.transport  # type: ignore[typeddict-unknown-key]

    def on_body(self, body: bytes) -> None:
        """Part of a body: bounded by whoever reads it."""
        self._unparsed = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The request has ended; one whose head is to be parsed again has only begun."""
        if self._is_in_head:
            return
        self._unparsed = 0
        super().on_message_complete()

    def _refuse(self, answer: bytes) -> None:
        """Answer, say that nothing follows, and drop what still comes until the caller leaves or time is up."""
        if self._is_refused:
            return
        self._is_refused = True
        self._stop_timer()
        if not self._may_answer():
            self.transport.close()
            return
        self.transport.write(answer)
        self.transport.write_eof()
        self.loop.call_later(LINGER_SECONDS, self.transport.close)

    def _may_answer(self) -> bool:
        """End the request that is under way; False where an answer has begun or is to come, which none may follow."""
        if self.pipeline or (self.cycle and self.cycle.response_started and not self.cycle.response_complete):
            return False
        if self.cycle and isinstance(self.cycle.transport, HeadWithBody):
            self.cycle.transport.flush()
        if self.cycle and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        return True

    def _count(self, part: bytes) -> None:
        self._counted += len(part)
        self._unparsed = 0

    def _time_head(self) -> None:
        self._stop_timer()
        self._head_timer = self.loop.call_later(HEAD_SECONDS, self.transport.abort)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


class HeadWithBody:
    """What a response writes to: its head waits for the first of its body, for this turn of the loop at most.

    uvicorn writes them one after the other. A short answer is then one packet, and whoever waits for it is not woken
    (in the server's place, where processors are few) before it is whole.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._head = b""
        self._is_whole = False

    def write(self, data: bytes) -> None:
        """Write, at once but for the head."""
        if self._is_whole:
            self._transport.write(data)
        elif not self._head:
            self._head = data
            self._loop.call_soon(self.flush)
        elif len(data) <= MAX_JOINED_BYTES:
            head, self._head, self._is_whole = self._head, b"", True
            self._transport.write(b"".join((head, data)))
        else:
            self.flush()
            self._transport.write(data)

    def close(self) -> None:
        """Close when all is written."""
        self.flush()
        self._transport.close()

    def is_closing(self) -> bool:
        """True when nothing more can be written."""
        return self._transport.is_closing()

    def flush(self) -> None:
        """Write a head that waits."""
        head, self._head, self._is_whole = self._head, b"", True
        if head and not self._transport.is_closing():
            self._transport.write(head)
