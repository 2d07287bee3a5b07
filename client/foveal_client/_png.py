"""Pixels → PNG, with zlib alone: arrays can be sent without Pillow, and lose nothing."""

from __future__ import annotations

import struct
import zlib

import numpy as np
import numpy.typing as npt

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_COLOUR_TYPES = {1: 0, 3: 2, 4: 6}
"""Channels → PNG's number for gray, RGB, RGBA."""
_UP_FILTER = 2
_FASTEST = 1
_MAX_SIDE = 2**31 - 1


def png_of(pixels: npt.NDArray[np.generic]) -> bytes:
    """PNG of uint8 pixels: [H, W] gray, [H, W, 3] RGB or [H, W, 4] RGBA. Raises ValueError for any other array."""
    if pixels.dtype != np.uint8:
        raise ValueError(f"an image array must be uint8 (0..255), not {pixels.dtype}")
    channels = pixels.shape[2] if pixels.ndim == 3 else 1
    if pixels.ndim not in (2, 3) or (pixels.ndim == 3 and channels not in (3, 4)):
        raise ValueError(f"an image array must be [H, W], [H, W, 3] or [H, W, 4], not {list(pixels.shape)}")
    height, width = pixels.shape[:2]
    if not (0 < height <= _MAX_SIDE and 0 < width <= _MAX_SIDE):
        raise ValueError(f"an image array must have pixels, not shape {list(pixels.shape)}")
    head = struct.pack(">IIBBBBB", width, height, 8, _COLOUR_TYPES[channels], 0, 0, 0)
    rows = zlib.compress(_filtered(pixels.reshape(height, width * channels)).data, _FASTEST)
    return _SIGNATURE + _chunk(b"IHDR", head) + _chunk(b"IDAT", rows) + _chunk(b"IEND", b"")


def _filtered(rows: npt.NDArray[np.generic]) -> npt.NDArray[np.uint8]:
    """Each row as its difference to the one above, modulo 256, behind the number of that filter."""
    out = np.empty((rows.shape[0], rows.shape[1] + 1), np.uint8)
    out[:, 0] = _UP_FILTER
    out[:, 1:] = rows
    out[1:, 1:] -= rows[:-1].astype(np.uint8, copy=False)
    return out


def _chunk(name: bytes, body: bytes) -> bytes:
    checksum = zlib.crc32(body, zlib.crc32(name))
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", checksum)
