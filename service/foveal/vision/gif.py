"""Whether a GIF is whole: the decoder stops behind the first frame and would not notice."""

from __future__ import annotations

from foveal.errors import Undecodable

_TRAILER, _EXTENSION, _FRAME = 0x3B, 0x21, 0x2C


def check_end(data: memoryview) -> None:
    """Raise Undecodable when the file ends before its trailer. Hops over blocks only if the last byte is none."""
    if bytes(data[-64:]).rstrip(b"\0")[-1:] == b";":
        return
    try:
        _hop_to_trailer(data)
    except IndexError:
        raise Undecodable("the GIF image is truncated: its end is missing") from None


def _hop_to_trailer(data: memoryview) -> None:
    at = 13 + _palette_bytes(data[10])
    while data[at] != _TRAILER:
        if data[at] == _FRAME:
            at += 11 + _palette_bytes(data[at + 9])
        elif data[at] == _EXTENSION:
            at += 2
        else:
            raise Undecodable("the GIF image is damaged: it has a block of an unknown kind")
        while data[at]:
            at += 1 + data[at]
        at += 1


def _palette_bytes(flags: int) -> int:
    return 3 << ((flags & 7) + 1) if flags & 0x80 else 0
