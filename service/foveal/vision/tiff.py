"""The directory of a TIFF, before its reader is opened: that one makes an object for each value and each strip."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from foveal.errors import Undecodable

MAX_TAGS = 1024
MAX_PIECES = 1 << 15
"""Strips or tiles: so many take the reader a tenth of a second."""
MAX_VALUES = 200_000
"""Numbers of any other tag; the colour map of 16 bits has 196,608."""
_SLACK_BYTES = 64 << 10
_VALUE_BYTES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4, 16: 8, 17: 8, 18: 8}
"""By the type of a tag."""
_TEXT_TYPES = (1, 2, 6, 7)
"""Bytes, which the reader keeps as they are."""
_PIECE_TAGS = (273, 279, 324, 325)
"""Offsets and lengths of strips, then of tiles."""


class _Tag(NamedTuple):
    number: int
    type: int
    values: int


def check_directory(data: memoryview) -> None:
    """Raise Undecodable where the first directory has more tags, values or strips than a picture has, or tags that
    share their bytes so that all together are far larger than the file. What is cut off is left to the decoder.
    """
    total = 0
    try:
        for i, tag in enumerate(_tags(data)):
            size = tag.values * _VALUE_BYTES.get(tag.type, 1)
            total += size if size > 8 else 0
            if i >= MAX_TAGS:
                _refuse(f"more than {MAX_TAGS} tags")
            if tag.number in _PIECE_TAGS and tag.values > MAX_PIECES:
                _refuse(f"{tag.values} strips or tiles, and {MAX_PIECES} are read")
            if tag.type not in _TEXT_TYPES and tag.values > MAX_VALUES:
                _refuse(f"{tag.values} values in one tag, and {MAX_VALUES} are read")
            if total > 2 * len(data) + _SLACK_BYTES:
                _refuse("tags that are larger than the file")
    except (struct.error, OverflowError):
        return


def _tags(data: memoryview) -> Iterator[_Tag]:
    order = "<" if bytes(data[:2]) == b"II" else ">"
    is_big = struct.unpack_from(order + "H", data, 2)[0] == 43
    (at,) = struct.unpack_from(order + ("Q" if is_big else "I"), data, 8 if is_big else 4)
    (number,) = struct.unpack_from(order + ("Q" if is_big else "H"), data, at)
    at += 8 if is_big else 2
    entry = struct.Struct(order + ("HHQ8x" if is_big else "HHI4x"))
    for _ in range(number):
        yield _Tag(*entry.unpack_from(data, at))
        at += entry.size


def _refuse(what: str) -> None:
    raise Undecodable(f"the TIFF image has {what}; save it again")
