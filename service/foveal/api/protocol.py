"""uvicorn's HTTP protocol with two things added: a bound on request heads, and a way to drop a connection."""

from __future__ import annotations

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES = 64 << 10
_TOO_LONG = b"HTTP/1.1 431 Request Header Fields Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class BoundedProtocol(HttpToolsProtocol):
    """A head that does not end is answered 431 before it takes memory or time."""

    _head_bytes = 0
    _is_in_head = True

    def data_received(self, data: bytes) -> None:
        """Count what belongs to a head that has not ended."""
        if self._is_in_head and self._head_bytes + len(data) > MAX_HEAD_BYTES and not _ends(data):
            self.transport.write(_TOO_LONG)
            self.transport.close()
            return
        super().data_received(data)
        self._head_bytes = self._head_bytes + len(data) if self._is_in_head else 0

    def on_message_begin(self) -> None:
        """A head begins."""
        self._is_in_head = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """The head has ended; whoever serves the request may drop the connection."""
        self._is_in_head = False
        super().on_headers_complete()
        self.scope["foveal.abort"] = self.transport.abort  # type: ignore[typeddict-unknown-key]


def _ends(data: bytes) -> bool:
    """True if a head of allowed length ends in this piece."""
    return 0 <= data.find(b"\r\n\r\n") <= MAX_HEAD_BYTES
