"""One small valid file of every kind that is decoded: what mutations start from."""

from __future__ import annotations

import functools
import io
import struct
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import simplejpeg
from PIL import Image

from foveal.vision import heif

WIDTH, HEIGHT = 24, 20
_TIFF = ("raw", "packbits", "tiff_lzw", "tiff_adobe_deflate", "jpeg", "zstd", "lzma")
_SAVED: dict[str, tuple[str, str, dict[str, Any]]] = {
    "jpeg": ("RGB", "JPEG", {"subsampling": 2}),
    "jpeg progressive": ("RGB", "JPEG", {"progressive": True}),
    "jpeg restarts": ("RGB", "JPEG", {"restart_marker_blocks": 1}),
    "jpeg grey": ("L", "JPEG", {}),
    "jpeg cmyk": ("CMYK", "JPEG", {}),
    "mpo": ("RGB", "MPO", {"frames": True}),
    "png": ("RGB", "PNG", {}),
    "png grey": ("L", "PNG", {"transparency": 8}),
    "png 16": ("I;16", "PNG", {}),
    "png bits": ("1", "PNG", {}),
    "png palette": ("P", "PNG", {"transparency": bytes(range(0, 250, 10))}),
    "png alpha": ("RGBA", "PNG", {}),
    "png grey alpha": ("LA", "PNG", {}),
    "png animated": ("RGB", "PNG", {"frames": True}),
    "webp": ("RGB", "WEBP", {}),
    "webp lossless": ("RGBA", "WEBP", {"lossless": True}),
    "webp animated": ("RGB", "WEBP", {"frames": True}),
    "gif": ("P", "GIF", {"transparency": 3}),
    "gif animated": ("P", "GIF", {"frames": True}),
    "bmp": ("RGB", "BMP", {}),
    "bmp palette": ("P", "BMP", {}),
    "bmp alpha": ("RGBA", "BMP", {}),
    "bmp bits": ("1", "BMP", {}),
    **{f"tiff {name}": ("RGB", "TIFF", {"compression": name}) for name in _TIFF},
    "tiff group 4": ("1", "TIFF", {"compression": "group4"}),
    "tiff big": ("RGB", "TIFF", {"big_tiff": True}),
    "tiff 16": ("I;16B", "TIFF", {}),
    "tiff cmyk": ("CMYK", "TIFF", {}),
    "tiff lab": ("LAB", "TIFF", {}),
    "tiff pages": ("RGB", "TIFF", {"frames": True}),
    "avif": ("RGB", "AVIF", {"speed": 10}),
    "avif alpha": ("RGBA", "AVIF", {"speed": 10}),
    "pgm": ("L", "PPM", {}),
    "ppm": ("RGB", "PPM", {}),
    "pbm": ("1", "PPM", {}),
    "pgm 16": ("I", "PPM", {}),
}
_TAGGED = {"JPEG", "PNG", "WEBP", "TIFF", "AVIF", "MPO"}


def drawing() -> Image.Image:
    """Noise in one half, a ramp in the other."""
    pixels = np.random.default_rng(5).integers(0, 256, (HEIGHT, WIDTH, 3), dtype=np.uint8)
    pixels[: HEIGHT // 2] = np.arange(WIDTH, dtype=np.uint8)[:, None] * 10
    return Image.fromarray(pixels)


def chunk(kind: bytes, body: bytes) -> bytes:
    """A chunk of a PNG."""
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def interlaced_png() -> bytes:
    """Seven passes, which Pillow does not write."""
    pixels = np.asarray(drawing())
    passes = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))
    raw = b"".join(b"\0" + row.tobytes() for x, y, dx, dy in passes for row in pixels[y::dy, x::dx])
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", WIDTH, HEIGHT, 8, 2, 0, 0, 1))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(raw)) + chunk(b"IEND", b"")


def rle_bmp(width: int = WIDTH, height: int = HEIGHT) -> bytes:
    """Runs of one colour a line, and a palette of 256."""
    lines = b"".join(bytes([width, line % 256, 0, 0]) for line in range(height)) + b"\0\1"
    palette = b"".join(bytes([i, 255 - i, i // 2, 0]) for i in range(256))
    head = struct.pack("<IiiHHIIiiII", 40, width, height, 1, 8, 1, len(lines), 2835, 2835, 256, 0)
    start = 14 + len(head) + len(palette)
    return b"BM" + struct.pack("<IHHI", start + len(lines), 0, 0, start) + head + palette + lines


def text_ppm(kind: int) -> bytes:
    """P1, P2 or P3: samples as text, with a comment."""
    pixels = np.asarray(drawing().convert({1: "1", 2: "L", 3: "RGB"}[kind])).astype(int).ravel()
    largest = "" if kind == 1 else "255\n"
    return f"P{kind}\n# drawn\n{WIDTH} {HEIGHT}\n{largest}".encode() + b" ".join(b"%d" % v for v in pixels) + b"\n"


def _saved() -> Iterator[tuple[str, bytes]]:
    tags = Image.Exif()
    tags[0x0112], tags[0x010F] = 6, "a maker of cameras"
    for name, (mode, format, options) in _SAVED.items():
        image = drawing() if mode != "LAB" else Image.frombytes("LAB", (WIDTH, HEIGHT), drawing().tobytes())
        image = image.convert("I").point(lambda v: v * 200) if mode[0] == "I" else image
        image, options = image.convert(mode), dict(options)
        if mode in ("RGBA", "LA"):
            image.putalpha(drawing().convert("L"))
        if options.pop("frames", False):
            options |= {"save_all": True, "append_images": [image.transpose(Image.Transpose.ROTATE_180)]}
        if format in _TAGGED:
            options["exif"] = tags.tobytes()
        stream = io.BytesIO()
        image.save(stream, format, **options)
        yield name, stream.getvalue()


@functools.cache
def seeds() -> dict[str, bytes]:
    """All files by name."""
    inks = np.ascontiguousarray(np.asarray(drawing().convert("CMYK")))
    found = dict(_saved()) | {
        "jpeg ycck": simplejpeg.encode_jpeg(inks, colorspace="CMYK"),
        "png interlaced": interlaced_png(),
        "bmp rle": rle_bmp(),
        "ppm of 10 bits": b"P6 4 4 1023\n" + bytes(range(96)),
        **{f"ppm text {kind}": text_ppm(kind) for kind in (1, 2, 3)},
    }
    return found | ({"heic": _heic("RGB"), "heic alpha": _heic("RGBA")} if heif.is_installed() else {})


def _heic(mode: str) -> bytes:
    import pillow_heif

    stream = io.BytesIO()
    tags = Image.Exif()
    tags[0x0112] = 6
    image = drawing().convert(mode)
    if mode == "RGBA":
        image.putalpha(drawing().convert("L"))
    pillow_heif.from_pillow(image).save(stream, format="HEIF", exif=tags.tobytes())
    return stream.getvalue()
