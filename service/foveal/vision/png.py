"""The chunks of a PNG: which of them decide the pixels, and whether the file is whole.

Pillow reads a PNG whose last chunks are missing, never tests the checksums of pixel data, and fails on oversized
metadata. So the decoder is handed only what makes the first picture, joined after the file was found whole: text,
colour profiles and the later frames of an animation neither cost nor break anything.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import NamedTuple

from foveal.errors import Undecodable

SIGNATURE = b"\x89PNG\r\n\x1a\n"
_PIXEL_CHUNKS = (b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND")
_TEXT_CHUNKS = (b"tEXt", b"zTXt", b"iTXt")
_ORIENTATION_TEXTS = (b"Raw profile type exif\0", b"XML:com.adobe.xmp\0")
MAX_CHUNKS = 100_000
"""Sixty megabytes in pieces of 600 bytes. Each is a step in Python: a file of empty ones would take a minute."""
MAX_ORIENTING_CHUNKS, MAX_ORIENTING_BYTES = 8, 1 << 20
"""Metadata beyond that are not read for an orientation; real ones are one block of some kilobytes."""
MAX_RATIO = 1032
"""What deflate makes of one byte at most: two bits for 258."""
_ROW_SLACK, _SLACK_BYTES = 16, 64 << 10
"""What compressed pixels may have more than twice the pixels: some encoders flush behind each row."""
_INFLATE_PIECE_BYTES = 1 << 20
_ADAM7 = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))
"""First column, first row, step across, step down of each pass."""
_NO_END = "the PNG image is truncated: its end is missing"
_EMPTY_IDAT = b"\0\0\0\0IDAT" + zlib.crc32(b"IDAT").to_bytes(4, "big")


class Header(NamedTuple):
    """IHDR: size, bits of a sample, and colour type."""

    width: int
    height: int
    depth: int
    color: int

    @property
    def pixel_bits(self) -> int:
        """Bits of a pixel before compression."""
        return self.depth * {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}.get(self.color, 1)


def header(data: memoryview) -> Header:
    """The first chunk. Raises Undecodable where it is not whole or has no area."""
    head = bytes(data[:33])
    if not head.startswith(SIGNATURE) or head[12:16] != b"IHDR" or len(head) < 33:
        raise Undecodable("the PNG image is truncated or damaged")
    width, height = int.from_bytes(head[16:20], "big"), int.from_bytes(head[20:24], "big")
    if not width or not height:
        raise Undecodable(f"the PNG image says that it is {width} x {height} pixels large")
    return Header(width, height, head[24], head[25])


def pixel_chunks(data: memoryview) -> bytes:
    """A PNG of the chunks that make the first picture. One copy; checksums and the end of the file are tested."""
    parts: list[bytes | memoryview] = [SIGNATURE]
    kind = b""
    for kind, chunk in _chunks(data):
        if kind in _PIXEL_CHUNKS:
            if zlib.crc32(chunk[4:-4]) != int.from_bytes(chunk[-4:], "big"):
                raise Undecodable("the PNG image is damaged: a checksum does not match")
            parts.append(chunk)
    if kind != b"IEND":
        raise Undecodable(_NO_END)
    return b"".join(parts)


def check_pixel_data(data: memoryview) -> None:
    """Raise Undecodable where the compressed pixels end before the picture does; the decoder leaves the rest black.

    Inflates once more, piece by piece, so it is for pictures that end in suspicious rows only.
    """
    missing = _pixel_bytes(data)
    inflate = zlib.decompressobj()
    try:
        for chunk in (chunk for kind, chunk in _chunks(data) if kind == b"IDAT"):
            left: bytes | memoryview = chunk[8:-4]
            while left and not inflate.eof:
                missing -= len(inflate.decompress(left, _INFLATE_PIECE_BYTES))
                left = inflate.unconsumed_tail
    except zlib.error:
        raise Undecodable("the PNG image is damaged: its pixels cannot be decompressed") from None
    if missing > 0:
        raise Undecodable("the PNG image is truncated: its pixels end early")


def _pixel_bytes(data: memoryview) -> int:
    """Bytes of all rows before compression: a filter byte, then samples; of seven passes when interlaced."""
    head = header(data)
    bits = head.pixel_bits
    passes = _ADAM7 if data[28] else ((0, 0, 1, 1),)
    total = 0
    for x, y, across, down in passes:
        width, height = -(-(head.width - x) // across), -(-(head.height - y) // down)
        total += height * (1 + -(-width * bits // 8)) if width > 0 and height > 0 else 0
    return total


def survey(data: memoryview) -> bytes | None:
    """Hop over the chunks once, without inflating any. Raises Undecodable where their lengths alone tell that the file
    is cut off, or that its compressed pixels are too few or far too many for a picture of its size.

    Returns a PNG without pixels that holds the chunks which may name an orientation, or None when there are none. They
    may also stand behind the pixels, where a reader of the header alone would not look.
    """
    kind, compressed = b"", 0
    orienting: list[memoryview] = []
    for kind, chunk in _chunks(data):
        if kind == b"IDAT":
            compressed += len(chunk) - 12
        elif len(orienting) < MAX_ORIENTING_CHUNKS and _may_orient(kind, chunk):
            orienting.append(chunk)
    if kind != b"IEND":
        raise Undecodable(_NO_END)
    _check_compressed(compressed, data)
    return b"".join([data[:33], *orienting, _EMPTY_IDAT]) if orienting else None


def _check_compressed(compressed: int, data: memoryview) -> None:
    head, needed = header(data), _pixel_bytes(data)
    what = f"its {compressed} bytes of compressed pixels"
    if compressed * MAX_RATIO < needed:
        raise Undecodable(f"the PNG image is truncated: {what} cannot hold {head.width} x {head.height} pixels")
    if compressed > 2 * needed + _ROW_SLACK * head.height + _SLACK_BYTES:
        raise Undecodable(
            f"the PNG image is damaged: {what} are far more than {head.width} x {head.height} pixels take"
        )


def visible_key(key: int | tuple[int, ...], head: Header) -> int | tuple[int, ...]:
    """The transparent colour of a tRNS chunk in the 8-bit samples that the decoder gives; 16 bits lose the low byte.

    16-bit grey keeps its key: those samples are compared before they are reduced.
    """
    if isinstance(key, tuple):
        return tuple(k >> 8 for k in key) if head.depth == 16 else key
    if head.depth >= 8:
        return key
    largest = (1 << head.depth) - 1
    return (key & largest) * 255 // largest


def _may_orient(kind: bytes, chunk: memoryview) -> bool:
    if len(chunk) > MAX_ORIENTING_BYTES:
        return False
    return kind == b"eXIf" or (kind in _TEXT_CHUNKS and bytes(chunk[8:40]).startswith(_ORIENTATION_TEXTS))


def _chunks(data: memoryview) -> Iterator[tuple[bytes, memoryview]]:
    """(type, whole chunk with length and checksum) up to IEND, or to the first chunk that is cut off."""
    at, size = len(SIGNATURE), len(data)
    for _ in range(MAX_CHUNKS):
        if at + 12 > size:
            return
        end = at + 12 + int.from_bytes(data[at : at + 4], "big")
        if end > size:
            return
        kind = bytes(data[at + 4 : at + 8])
        yield kind, data[at:end]
        if kind == b"IEND":
            return
        at = end
    raise Undecodable(f"the PNG image has more than {MAX_CHUNKS} chunks; save it again")
