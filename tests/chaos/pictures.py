"""Pictures for storms and floods: small, of many sizes, and as many different ones of the same cost as one likes."""

from __future__ import annotations

import random
import struct
import zlib

from tests.system.test_encode import noise

_END_BYTES = 12
"""The last chunk of a PNG."""


def gallery(count: int, seed: int, most: int = 320) -> list[bytes]:
    """Different pictures with sides of 32 to `most` pixels."""
    chance = random.Random(seed)
    return [noise(chance.randint(32, most), chance.randint(32, most), seed * 100_000 + i) for i in range(count)]


def flat_png(side: int) -> bytes:
    """A small file of a large picture, with 16 bits and alpha: it takes a second to decode."""
    pixels = zlib.compressobj(9)
    row = bytes(1 + 8 * side)
    body = b"".join([*(pixels.compress(row) for _ in range(side)), pixels.flush()])
    head = struct.pack(">IIBBBBB", side, side, 16, 6, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + b"".join(map(_chunk, (b"IHDR", b"IDAT", b"IEND"), (head, body, b"")))


def _chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def marked(png: bytes, number: int) -> bytes:
    """The same picture as other bytes: neither the cache nor single-flight knows it."""
    return png[:-_END_BYTES] + _chunk(b"tEXt", b"n\0" + str(number).encode()) + png[-_END_BYTES:]
