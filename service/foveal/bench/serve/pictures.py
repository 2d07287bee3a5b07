"""What is sent: pictures made or read once before the run, and copies of them that differ in bytes, not in pixels."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path

import numpy as np
from PIL import Image

from foveal.bench.mixture import sizes
from foveal.errors import ConfigurationError

JPEG_START = b"\xff\xd8"
PNG_START = b"\x89PNG\r\n\x1a\n"
PNG_HEADER_END = 33
"""After the signature and the IHDR chunk."""
GRAIN = 12
"""Pixels of one blot of colour: gives JPEG files the weight that photographs have."""
QUALITY = 85


def synthetic(width: int, height: int, seed: int) -> bytes:
    """A JPEG of soft blots and some noise, about as many bytes as a photograph of its size."""
    random = np.random.default_rng([seed, width, height])
    blots = random.integers(0, 256, (max(2, height // GRAIN), max(2, width // GRAIN), 3), np.uint8)
    image = Image.fromarray(blots).resize((width, height), Image.Resampling.BICUBIC)
    noise = random.integers(0, 12, (height, width, 1), np.uint8)
    pixels = np.minimum(np.asarray(image), 243) + noise
    sink = io.BytesIO()
    Image.fromarray(pixels.astype(np.uint8)).save(sink, "JPEG", quality=QUALITY)
    return sink.getvalue()


def of_sizes(wanted: Iterable[tuple[int, int]], seed: int) -> list[bytes]:
    """One picture of each size."""
    return [synthetic(width, height, seed + i) for i, (width, height) in enumerate(wanted)]


def of_mixture(count: int, seed: int) -> list[bytes]:
    """Pictures of the sizes that a chat service sees."""
    return of_sizes(islice(sizes(seed), count), seed)


def of_folder(folder: Path) -> list[bytes]:
    """Every file of a folder, in order of names."""
    try:
        found = [path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()]
    except OSError as error:
        raise ConfigurationError(f"--folder {folder}: {error.strerror or error}") from None
    if not found:
        raise ConfigurationError(f"--folder {folder} holds no file")
    return found


def parse_size(text: str) -> tuple[int, int]:
    """'640x480' → 640, 480; raises ConfigurationError."""
    width, _, height = text.lower().partition("x")
    if not (width.isdecimal() and height.isdecimal() and int(width) and int(height)):
        raise ConfigurationError(f"--size {text}: say WIDTHxHEIGHT, as in 640x480")
    return int(width), int(height)


def copy_of(picture: bytes, copy: int) -> bytes:
    """The same pixels in other bytes: the number goes into a comment. Formats but JPEG and PNG stay as they are."""
    text = b"copy %d" % copy
    if picture.startswith(JPEG_START):
        return JPEG_START + b"\xff\xfe" + struct.pack(">H", 2 + len(text)) + text + picture[2:]
    if picture.startswith(PNG_START):
        body = b"tEXt" + b"copy\0" + text
        chunk = struct.pack(">I", len(body) - 4) + body + struct.pack(">I", zlib.crc32(body))
        return picture[:PNG_HEADER_END] + chunk + picture[PNG_HEADER_END:]
    return picture


def num_uncopied(pictures: Sequence[bytes]) -> int:
    """How many cannot be told apart from their copies: a cache answers those from the second time on."""
    return sum(not picture.startswith((JPEG_START, PNG_START)) for picture in pictures)
