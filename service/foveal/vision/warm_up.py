"""Runs every kind of decoding once, on pictures of a few pixels, before the process gives up opening files.

Libraries load modules, tables and processor features when first asked: what is not asked for here could never be
loaded afterwards.
"""

from __future__ import annotations

import contextlib
import io
import logging
from collections.abc import Iterator
from typing import Any

from PIL import AvifImagePlugin, ExifTags, Image

from foveal.errors import FovealError
from foveal.types import Interpolation, PixelPlan
from foveal.vision.decode import decode, probe
from foveal.vision.resize import resize

_SIDE = 32
_TEXTS = ("", "<svg/>", "a letter")
_INTERPOLATIONS: tuple[Interpolation, ...] = ("bicubic", "bilinear")
_KINDS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("RGB", "JPEG", {"progressive": True}),
    ("CMYK", "JPEG", {}),
    ("RGBA", "PNG", {}),
    ("P", "PNG", {"transparency": 1}),
    ("RGBA", "WEBP", {}),
    ("P", "GIF", {}),
    ("RGB", "BMP", {}),
    ("LAB", "TIFF", {"compression": "tiff_lzw"}),
    ("RGB", "TIFF", {"compression": "jpeg"}),
    ("I;16", "TIFF", {}),
    ("L", "PPM", {}),
)


def warm_up() -> None:
    """Decode and resize a picture of every kind, whole and cut off; raises whatever is wrong with the installation."""
    logging.disable()  # the refusals below are none
    try:
        _decode_all()
    finally:
        logging.disable(logging.NOTSET)


def _decode_all() -> None:
    for data in _files():
        pixels = decode(data, (255, 255, 255), _SIDE * _SIDE)
        for interpolation in _INTERPOLATIONS:
            resize(pixels, PixelPlan(_SIDE // 2, _SIDE // 2, 1, 1, interpolation))
        _refuse(data[: len(data) // 2])
    for encoding in ("utf-8", "utf-16", "latin-1"):
        for text in _TEXTS:
            _refuse(text.encode(encoding))


def _refuse(data: bytes) -> None:
    with contextlib.suppress(FovealError):
        probe(data, 1)
    with contextlib.suppress(FovealError):
        decode(data, (0, 0, 0), _SIDE * _SIDE)


def _files() -> Iterator[bytes]:
    tags = Image.Exif()
    tags[ExifTags.Base.Orientation] = 6
    kinds = [*_KINDS, *([("RGB", "AVIF", {})] if AvifImagePlugin.SUPPORTED else [])]
    for mode, format, options in kinds:
        stream = io.BytesIO()
        has_tags = format in ("JPEG", "PNG", "WEBP", "TIFF", "AVIF")
        image = Image.new(mode if mode in ("I;16", "LAB") else "RGB", (_SIDE, _SIDE))
        image.convert(mode).save(stream, format, **options, **({"exif": tags.tobytes()} if has_tags else {}))
        yield stream.getvalue()
