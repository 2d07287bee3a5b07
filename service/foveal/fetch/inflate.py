"""Decompression in bounded steps: a few bytes that become a gigabyte are found out at the first step too many."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

from foveal.errors import UrlFailed

STEP_BYTES = 256 << 10
_FORMATS = {b"gzip": zlib.MAX_WBITS + 16, b"x-gzip": zlib.MAX_WBITS + 16, b"deflate": zlib.MAX_WBITS}


class Plain:
    """A body that is not compressed."""

    def parts(self, piece: bytes) -> Iterator[bytes]:
        """The piece as it is."""
        yield piece

    def finish(self) -> None:
        """Nothing is left over."""


class Inflate:
    """A gzip or deflate body, though we asked for none."""

    def __init__(self, window_bits: int) -> None:
        self._zlib = zlib.decompressobj(window_bits)

    def parts(self, piece: bytes) -> Iterator[bytes]:
        """What the piece adds, at most `STEP_BYTES` at a time; raises UrlFailed."""
        while piece and not self._zlib.eof:
            try:
                part = self._zlib.decompress(piece, STEP_BYTES)
            except zlib.error:
                raise UrlFailed("the URL's compressed answer is damaged", retryable=False) from None
            piece = self._zlib.unconsumed_tail
            yield part
        if self._zlib.eof and (piece or self._zlib.unused_data):
            raise UrlFailed("the URL's compressed answer goes on after its end", retryable=False)

    def finish(self) -> None:
        """Refuse a body that ended too early; raises UrlFailed."""
        if not self._zlib.eof:
            raise UrlFailed("the URL's compressed answer is cut off")


def inflater(content_encoding: bytes) -> Plain | Inflate:
    """What undoes this encoding; raises UrlFailed for one that is not read."""
    name = content_encoding.lower()
    if name in (b"", b"identity"):
        return Plain()
    if name not in _FORMATS:
        raise UrlFailed("the URL's answer is compressed in a way that is not read; serve it as it is", retryable=False)
    return Inflate(_FORMATS[name])
