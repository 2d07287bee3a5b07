"""A PNG whose compressed pixels end early is refused, whole file or not; black pictures are not mistaken for one."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from foveal.errors import Undecodable
from foveal.vision.decode import decode

WHITE = (255, 255, 255)


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def with_pixels(depth: int, color: int, interlace: int, raw: bytes, size: tuple[int, int] = (37, 23)) -> bytes:
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", *size, depth, color, 0, 0, interlace))
    palette = chunk(b"PLTE", bytes(range(48))) if color == 3 else b""
    return b"\x89PNG\r\n\x1a\n" + head + palette + chunk(b"IDAT", zlib.compress(raw)) + chunk(b"IEND", b"")


def raw_bytes(depth: int, color: int, interlace: int, size: tuple[int, int] = (37, 23)) -> int:
    passes = [(0, 0, 1, 1)]
    if interlace:
        passes = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)]
    bits = depth * {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[color]
    total = 0
    for x, y, dx, dy in passes:
        columns, rows = len(range(x, size[0], dx)), len(range(y, size[1], dy))
        total += rows * (1 + -(-columns * bits // 8)) if columns else 0
    return total


@pytest.mark.parametrize("interlace", [0, 1])
@pytest.mark.parametrize(("depth", "color"), [(1, 0), (8, 0), (16, 0), (8, 2), (16, 2), (4, 3), (8, 3), (8, 4), (8, 6)])
def test_black_is_black_and_early_ends_are_refused(depth: int, color: int, interlace: int) -> None:
    whole = raw_bytes(depth, color, interlace)
    black = decode(with_pixels(depth, color, interlace, bytes(whole)), WHITE, 10**6)
    assert black.shape == (23, 37, 3)
    for kept in (0, 1, whole // 2, whole - 1):
        with pytest.raises(Undecodable):
            decode(with_pixels(depth, color, interlace, b"\0" * kept), WHITE, 10**6)


@pytest.mark.parametrize("share", [0.01, 0.5, 0.99])
def test_a_photo_whose_stream_ends_early_is_refused(share: float) -> None:
    pixels = np.random.default_rng(0).integers(1, 256, (60, 80, 3), np.uint8)
    raw = b"".join(b"\0" + row.tobytes() for row in pixels)
    good = decode(with_pixels(8, 2, 0, raw, (80, 60)), WHITE, 10**6)
    np.testing.assert_array_equal(good, pixels)
    with pytest.raises(Undecodable):
        decode(with_pixels(8, 2, 0, raw[: int(len(raw) * share)], (80, 60)), WHITE, 10**6)


def test_a_picture_that_ends_in_black_rows_is_good() -> None:
    pixels = np.full((40, 30, 3), 200, np.uint8)
    pixels[20:] = 0
    sink = io.BytesIO()
    Image.fromarray(pixels).save(sink, "PNG")
    np.testing.assert_array_equal(decode(sink.getvalue(), WHITE, 10**6), pixels)
