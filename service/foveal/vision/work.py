"""How much work a picture is, told from its header: what decides how many processes such pictures may hold.

In pixels of a plain JPEG, of which a processor decodes some 150 million a second. A guide, not a measurement: it was
set by timing pictures of 64 megapixels of each format, and is right within a factor of two or three.
"""

from __future__ import annotations

from foveal.vision.sniff import Format

_OF_PIXEL: dict[Format, float] = {"WEBP": 2.0, "AVIF": 2.0, "HEIC": 2.0, "TIFF": 1.5}
"""Other formats 1."""
_OF_BYTE: dict[Format, float] = {"PNG": 4.0, "TIFF": 2.0}
"""Of a byte as sent, which is what pictures of noise are made of."""
_OF_ROW = 8
"""Rows of one pixel take far longer than their pixels."""


def decode_work(format: Format, width: int, height: int, num_bytes: int, factor: float = 1.0) -> int:
    """The work of a picture as stored; `factor`: what a pixel takes beyond the usual of its format."""
    pixels = width * height * factor * _OF_PIXEL.get(format, 1.0)
    return int(pixels + height * _OF_ROW + num_bytes * _OF_BYTE.get(format, 1.0))
