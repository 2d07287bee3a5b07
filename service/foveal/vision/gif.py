"""The blocks of a GIF: whether the file is whole, and whether they are few enough to be read one by one.

The decoder stops behind the first frame and would not notice a missing end; what stands before that frame it reads
in Python, block by block.
"""

from __future__ import annotations

from foveal.errors import Undecodable

MAX_BLOCKS_BEFORE, MAX_BLOCKS = 100_000, 2_000_000
"""Blocks have parts of up to 255 bytes; a file of tiny ones would take a minute."""
MAX_RATIO = 4096
"""Pixels of one byte at most: a code of 12 bits is a string of less than 4096."""
_TRAILER, _EXTENSION, _FRAME = 0x3B, 0x21, 0x2C


def check_start(data: memoryview) -> None:
    """Raise Undecodable when too many blocks come before the first frame. What is cut off is left to the decoder."""
    try:
        _hop(data, _FRAME, MAX_BLOCKS_BEFORE)
    except IndexError:
        return


def check_frame(width: int, height: int, num_bytes: int) -> None:
    """Raise Undecodable where a first frame of this size cannot lie in so many bytes."""
    if width * height > MAX_RATIO * num_bytes:
        raise Undecodable(f"the GIF image is truncated: {num_bytes} bytes cannot hold {width} x {height} pixels")


def check_end(data: memoryview) -> None:
    """Raise Undecodable when the file ends before its trailer. Hops over blocks only if the last byte is none."""
    if bytes(data[-64:]).rstrip(b"\0")[-1:] == b";":
        return
    try:
        _hop(data, _TRAILER, MAX_BLOCKS)
    except IndexError:
        raise Undecodable("the GIF image is truncated: its end is missing") from None


def _hop(data: memoryview, goal: int, most: int) -> None:
    """From block to block up to one of the kind `goal`, or the trailer; raises IndexError at the end of the data."""
    at = 13 + _palette_bytes(data[10])
    for _ in range(most):
        kind = data[at]
        if kind in (goal, _TRAILER):
            return
        if kind == _EXTENSION:
            at, most = _behind_parts(data, at + 2, most)
        elif kind == _FRAME:
            at, most = _behind_parts(data, at + 11 + _palette_bytes(data[at + 9]), most)
        elif goal == _FRAME:
            at += 1  # the decoder passes over stray bytes there
        else:
            raise Undecodable("the GIF image is damaged: it has a block of an unknown kind")
    raise _too_many()


def _behind_parts(data: memoryview, at: int, most: int) -> tuple[int, int]:
    """The place behind the parts of a block, each of up to 255 bytes, and how many more there may be."""
    while data[at]:
        at += 1 + data[at]
        most -= 1
        if most < 0:
            raise _too_many()
    return at + 1, most


def _too_many() -> Undecodable:
    return Undecodable("the GIF image is made of very many tiny blocks; save it again")


def _palette_bytes(flags: int) -> int:
    return 3 << ((flags & 7) + 1) if flags & 0x80 else 0
