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


def marked(png: bytes, number: int) -> bytes:
    """The same picture as other bytes: neither the cache nor single-flight knows it."""
    body = b"tEXtn\0" + str(number).encode()
    chunk = struct.pack(">I", len(body) - 4) + body + struct.pack(">I", zlib.crc32(body))
    return png[:-_END_BYTES] + chunk + png[-_END_BYTES:]
