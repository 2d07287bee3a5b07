"""PBM, PGM and PPM, read here: Pillow reads all but two kinds of them in Python, seconds for a large picture.

Samples become 8 bits by one table look-up, whatever their largest value is. A picture of samples written as text
is read up to a size that takes a second; nobody writes larger ones.
"""

from __future__ import annotations

import re
from typing import NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt

from foveal.errors import TooLarge, Undecodable, UnsupportedType

Pixels = npt.NDArray[np.uint8]

MAX_TEXT_BYTES = 16 << 20
_MAX_HEADER_BYTES = 16 << 10
_GAP = rb"(?:[ \t\r\n\v\f]|#[^\r\n]*+[\r\n])++"
_SIZE = re.compile(rb"P([1-6])" + _GAP + rb"(\d{1,10})" + _GAP + rb"(\d{1,10})")
_LARGEST = re.compile(_GAP + rb"(\d{1,10})")
_COMMENT = re.compile(rb"#[^\r\n]*")
_SPACE = b" \t\r\n\v\f"
_TEXT_KINDS, _BIT_KINDS, _COLOR_KINDS = (1, 2, 3), (1, 4), (3, 6)


class Header(NamedTuple):
    """Kind (the digit of P1 to P6), size, value of white, and where the samples start."""

    kind: int
    width: int
    height: int
    largest: int
    start: int

    @property
    def channels(self) -> int:
        """Samples of a pixel."""
        return 3 if self.kind in _COLOR_KINDS else 1

    @property
    def num_samples(self) -> int:
        """Samples of the picture."""
        return self.width * self.height * self.channels


def header(data: memoryview) -> Header:
    """What the first lines say; raises Undecodable, UnsupportedType for floating-point samples."""
    head = bytes(data[:_MAX_HEADER_BYTES])
    if head.startswith(b"Pf"):
        raise UnsupportedType(
            "the bytes are PPM with floating-point samples, whose white is not defined; "
            "convert the image to 8 or 16 bits"
        )
    if (size := _SIZE.match(head)) is None:
        _refuse("its header is cut off or no header")
    kind, width, height = (int(part) for part in size.groups())
    largest, end = 1, size.end()
    if kind not in _BIT_KINDS:
        if (found := _LARGEST.match(head, end)) is None:
            _refuse("its header is cut off or no header")
        largest, end = int(found[1]), found.end()
    if not width or not height or not 0 < largest < 1 << 16:
        _refuse(f"it says that it is {width} x {height} pixels large, with samples up to {largest}")
    if head[end : end + 1] == b"#":  # a comment behind the last number ends with the line
        end = end + len(line[0]) if (line := _COMMENT.match(head, end)) else end
    return Header(kind, width, height, largest, end + 1)


def check_length(data: memoryview, head: Header) -> None:
    """Raise Undecodable where there are fewer bytes than the samples that the header names take at least."""
    if head.kind == 1:
        least = head.num_samples
    elif head.kind in _TEXT_KINDS:
        least = 2 * head.num_samples - 1
    elif head.kind in _BIT_KINDS:
        least = head.height * -(-head.width // 8)
    else:
        least = head.num_samples * (1 if head.largest < 256 else 2)
    if len(data) - head.start < least:
        _refuse("its samples end early")


def pixels(data: memoryview, head: Header) -> Pixels:
    """RGB [height, width, 3]; a view of `data` where the samples are what is wanted. Raises Undecodable, TooLarge."""
    samples = _text_samples(data, head) if head.kind in _TEXT_KINDS else _binary_samples(data, head)
    shaped = samples.reshape(head.height, head.width, head.channels)
    return shaped if head.channels == 3 else np.repeat(shaped, 3, axis=2)


def _binary_samples(data: memoryview, head: Header) -> Pixels:
    raster = np.frombuffer(data, np.uint8)[head.start :]
    if head.kind in _BIT_KINDS:
        line = -(-head.width // 8)
        bits = np.unpackbits(_whole(raster, head.height * line).reshape(head.height, line), axis=1, count=head.width)
        return _grey_of_ink(bits)
    if head.largest == 255:
        return _whole(raster, head.num_samples)
    if head.largest < 256:
        return _looked_up(head.largest, _whole(raster, head.num_samples))
    return _looked_up(head.largest, _whole(raster, 2 * head.num_samples).view(">u2"))


def _whole(raster: Pixels, size: int) -> Pixels:
    if raster.size < size:
        _refuse("its samples end early")
    return raster[:size]


def _text_samples(data: memoryview, head: Header) -> Pixels:
    if data.nbytes > MAX_TEXT_BYTES:
        raise TooLarge(
            f"a PPM image whose samples are text may have {MAX_TEXT_BYTES} bytes; save it in binary form (P4, P5, P6)"
        )
    text = _COMMENT.sub(b"", bytes(data[head.start - 1 :]))
    digits: npt.NDArray[np.unsignedinteger]
    if head.kind in _BIT_KINDS:
        digits = np.frombuffer(text.translate(None, _SPACE), np.uint8)[: head.num_samples] - ord("0")
    else:
        digits = _numbers(text, head.num_samples)
    if digits.size < head.num_samples:
        _refuse("its samples end early")
    if digits.max() > head.largest:
        _refuse(f"a sample is none of the numbers up to {head.largest}")
    return _grey_of_ink(digits) if head.kind in _BIT_KINDS else _looked_up(head.largest, digits)


def _numbers(text: bytes, count: int) -> npt.NDArray[np.uint32]:
    if text.translate(None, _SPACE + b"0123456789"):
        _refuse("a sample is no number")
    words = text.split(None, count)[:count]
    try:
        return np.fromiter(map(int, words), np.uint32, len(words))
    except (OverflowError, ValueError):
        _refuse("a sample is no number")


def _looked_up(largest: int, samples: npt.NDArray[np.unsignedinteger]) -> Pixels:
    """8 bits for every value: rounded from up to 8 bits, by the high byte of 16 from more. Above `largest` white."""
    values = np.minimum(np.arange(256 if largest < 256 else 1 << 16), largest)
    if largest < 256:
        return np.round(values / largest * 255).astype(np.uint8).take(samples)
    return (np.round(values / largest * 0xFFFF).astype(np.uint16) >> 8).astype(np.uint8).take(samples)


def _grey_of_ink(bits: npt.NDArray[np.unsignedinteger]) -> Pixels:
    """1 is black."""
    return np.where(bits, np.uint8(0), np.uint8(255))


def _refuse(why: str) -> NoReturn:
    raise Undecodable(f"the PPM image is truncated or damaged: {why}")
