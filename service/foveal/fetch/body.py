"""The body of an answer, counted as it arrives and after decompression, never held beyond its allowance."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable

import httpcore

from foveal.errors import TooLarge, Undecodable, UrlFailed
from foveal.fetch.inflate import STEP_BYTES, inflater

SPARE_PIECES = 4096
LEAST_PIECE_BYTES = 1024
"""A body may come in `SPARE_PIECES` of any size, and in more if they have this many bytes on average."""
PIECES_AT_A_TIME = 64


class Allowance:
    """The bytes that all images behind one request's URLs may have together."""

    def __init__(self, max_bytes: int, hold: Callable[[int], None]) -> None:
        self._max_bytes, self._hold = max_bytes, hold
        self._taken = 0

    def expect(self, num_bytes: int) -> None:
        """Refuse what would be too much; raises TooLarge."""
        if self._taken + num_bytes > self._max_bytes:
            raise TooLarge(
                f"the images behind a request's URLs may have {self._max_bytes} bytes together (--max-body-bytes); "
                "send fewer or smaller images"
            )

    def take(self, num_bytes: int) -> None:
        """Count bytes that have arrived; raises TooLarge, or Overloaded when the server holds too many."""
        self.expect(num_bytes)
        self._hold(num_bytes)
        self._taken += num_bytes


async def read_body(response: httpcore.Response, allowance: Allowance) -> bytes:
    """The whole body, decompressed; raises TooLarge, Overloaded, Undecodable, UrlFailed, or httpcore's errors."""
    headers = {name.lower(): value.strip() for name, value in response.headers}
    if (length := headers.get(b"content-length", b"")).isdigit():
        allowance.expect(int(length))
    inflate = inflater(headers.get(b"content-encoding", b""))
    body = bytearray()
    received = 0
    async with contextlib.aclosing(_pieces(response)) as pieces:
        async for piece in pieces:
            received += len(piece)
            allowance.expect(received - len(body))  # compressed bytes may turn into nothing, without end
            for part in inflate.parts(piece):
                allowance.take(len(part))
                body += part
                if len(part) == STEP_BYTES:
                    await asyncio.sleep(0)  # little that becomes much: others run in between
    inflate.finish()
    if not body:
        raise Undecodable("the URL's answer is empty: there is no image")
    return bytes(body)


async def _pieces(response: httpcore.Response) -> AsyncGenerator[bytes, None]:
    """The body as it comes; raises UrlFailed for dust, each grain of which costs as much as a whole read."""
    num_pieces = received = 0
    async with contextlib.aclosing(response.aiter_stream()) as stream:  # type: ignore[type-var]
        async for piece in stream:
            num_pieces += 1
            received += len(piece)
            if num_pieces > SPARE_PIECES + received // LEAST_PIECE_BYTES:
                raise UrlFailed("the URL's answer comes in too many tiny pieces", retryable=False)
            if num_pieces % PIECES_AT_A_TIME == 0:
                await asyncio.sleep(0)  # pieces of one read do not wait for the network: others would
            yield piece
