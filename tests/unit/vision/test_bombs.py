"""What a header or the length of a part tells is refused without decoding; what is merely large or odd is not."""

from __future__ import annotations

import io
import struct
import zlib
from typing import NoReturn

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from foveal.engine.prep_queue import LARGE_WORK
from foveal.errors import TooLarge, Undecodable
from foveal.vision import codec
from foveal.vision.decode import decode, probe
from foveal.vision.jpeg import USUAL_SCANS
from tests.fuzz.seeds import chunk

LIMIT = 64_000_000
WHITE = (255, 255, 255)
SIDE = 8000
"""Of the largest picture that may come."""


def saved(image: Image.Image, format: str, **options: object) -> bytes:
    sink = io.BytesIO()
    image.save(sink, format, **options)
    return sink.getvalue()


def zeros(size: int) -> bytes:
    """So many zeros, deflated: pieces that know nothing of each other, so that one does for all."""
    whole, rest = divmod(size, 1 << 20)
    piece, end = zlib.compressobj(9, wbits=-15), zlib.compressobj(9, wbits=-15)
    block = piece.compress(bytes(1 << 20)) + piece.flush(zlib.Z_FULL_FLUSH)
    check = struct.pack(">HH", size % 65521, 1)  # Adler-32 of zeros
    return b"\x78\xda" + block * whole + end.compress(bytes(rest)) + end.flush() + check


def png(width: int, height: int, pixels: bytes, *more: bytes, depth: int = 8, color: int = 2) -> bytes:
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, 0))
    return b"".join([b"\x89PNG\r\n\x1a\n", head, *more, chunk(b"IDAT", pixels), chunk(b"IEND", b"")])


PIXELS = zlib.compress(b"".join(b"\0" + bytes(96) for _ in range(32)))
"""Of 32 x 32."""
INFLATED = 256 << 20


def tiff(entries: list[tuple[int, int, int, int]], size: int, is_big: bool = False, order: str = "<") -> bytes:
    """A directory and so many bytes behind it."""
    mark = b"II" if order == "<" else b"MM"
    if is_big:
        head = mark + struct.pack(order + "HHHQQ", 43, 8, 0, 16, len(entries))
        body = b"".join(struct.pack(order + "HHQQ", *entry) for entry in entries)
    else:
        head = mark + struct.pack(order + "HIH", 42, 8, len(entries))
        body = b"".join(struct.pack(order + "HHII", *entry) for entry in entries)
    return (head + body).ljust(size, b"\0")


USUAL_TAGS = [(256, 4, 1, 64), (257, 4, 1, 64), (258, 3, 1, 8), (259, 3, 1, 1), (262, 3, 1, 1), (278, 4, 1, 1)]


def with_scans(count: int) -> bytes:
    """A progressive JPEG as large as may be whose last scan, of some bytes, comes again and again."""
    data = saved(Image.new("L", (SIDE, SIDE), 9), "JPEG", progressive=True)
    tables, last = data.rindex(b"\xff\xc4"), data.rindex(b"\xff\xda")
    scan = data[min(tables, last) : -2]
    return data[:-2] + scan * (count - data.count(b"\xff\xda")) + data[-2:]


def cut_bmp() -> bytes:
    data = saved(Image.new("RGB", (16, 16)), "BMP")
    return data[:18] + struct.pack("<ii", SIDE, SIDE) + data[26:]


def cut_gif() -> bytes:
    data, size = saved(Image.new("P", (16, 16), 1), "GIF"), struct.pack("<HH", SIDE, SIDE)
    frame = data.index(b",\0\0\0\0") + 5
    return data[:6] + size + data[10:frame] + size + data[frame + 4 :]


BOMBS = {
    "png too few": (lambda: png(SIDE, SIDE, PIXELS), Undecodable, "cannot hold 8000 x 8000"),
    "png too many": (lambda: png(32, 32, zeros(INFLATED)), Undecodable, "far more than 32 x 32"),
    "png without end": (lambda: png(32, 32, PIXELS)[:-12], Undecodable, "its end is missing"),
    "png row": (lambda: png(LIMIT, 1, zeros(8 * LIMIT + 1), depth=16, color=6), TooLarge, "512000000 bytes"),
    "jpeg scans": (lambda: with_scans(USUAL_SCANS + 1), Undecodable, f"may have {USUAL_SCANS}; save it again"),
    "jpeg too short": (
        lambda: saved(Image.new("RGB", (SIDE, SIDE), 9), "JPEG")[:2000] + b"\xff\xd9",
        Undecodable,
        "2002 bytes cannot hold 8000 x 8000",
    ),
    "gif too short": (cut_gif, Undecodable, "cannot hold 8000 x 8000"),
    "bmp too short": (cut_bmp, Undecodable, "its last line would begin at byte"),
    "pgm too short": (lambda: b"P5 8000 8000 255\n" + bytes(9), Undecodable, "samples end early"),
    "pbm too short": (lambda: b"P4 8000 8000\n" + bytes(9), Undecodable, "samples end early"),
    "pgm of 16 bits too short": (lambda: b"P5 2 2 65535\n" + bytes(7), Undecodable, "samples end early"),
    "ppm text too short": (lambda: b"P3 8000 8000 255\n" + b"1 " * 99, Undecodable, "samples end early"),
    "tiff strips": (
        lambda: tiff([*USUAL_TAGS, (273, 4, 4_000_000, 200), (279, 4, 4_000_000, 200)], 16_000_300),
        Undecodable,
        "4000000 strips or tiles",
    ),
    "big tiff tiles": (
        lambda: tiff([*USUAL_TAGS, (324, 16, 1_000_000, 300)], 8_000_300, is_big=True, order=">"),
        Undecodable,
        "1000000 strips or tiles",
    ),
    "tiff values": (lambda: tiff([(258, 3, 4_000_000, 200)], 8_000_300), Undecodable, "4000000 values in one tag"),
    "tiff shared bytes": (
        lambda: tiff([(1000 + i, 7, 900_000, 20_000) for i in range(500)], 1_000_000),
        Undecodable,
        "larger than the file",
    ),
    "tiff tags": (lambda: tiff([(1000 + i, 3, 1, 1) for i in range(1025)], 20_000), Undecodable, "more than 1024 tags"),
}


@pytest.mark.parametrize("kind", BOMBS)
def test_what_a_header_or_a_length_tells_is_refused_before_anything_is_decoded(kind: str) -> None:
    make, error, words = BOMBS[kind]
    data = make()
    for call in (lambda: probe(data, LIMIT), lambda: decode(data, WHITE, LIMIT)):
        with pytest.raises(error, match=words):
            call()


@pytest.mark.parametrize("kind", [kind for kind in BOMBS if "tiff" in kind])
def test_no_reader_is_opened_for_a_directory_that_would_take_it_seconds(kind: str, monkeypatch) -> None:
    def opened(*_: object) -> NoReturn:
        raise AssertionError("a reader was opened")

    monkeypatch.setitem(codec._READERS, "TIFF", opened)
    with pytest.raises(Undecodable):
        probe(BOMBS[kind][0](), LIMIT)


METADATA = {
    "zTXt": lambda: chunk(b"zTXt", b"comment\0\0" + zeros(INFLATED)),
    "iCCP": lambda: chunk(b"iCCP", b"profile\0\0" + zeros(INFLATED)),
    "zTXt that may orient": lambda: chunk(b"zTXt", b"Raw profile type exif\0\0" + zeros(INFLATED)),
    "iTXt that may orient": lambda: chunk(b"iTXt", b"XML:com.adobe.xmp\0\1\0\0\0" + zeros(INFLATED)),
    "very many that may orient": lambda: chunk(b"iTXt", b"XML:com.adobe.xmp\0\1\0\0\0" + zeros(1 << 20)) * 500,
    "eXIf of megabytes": lambda: chunk(b"eXIf", tiff([(1000 + i, 7, 1 << 20, 70_000) for i in range(5000)], 2 << 20)),
}


@pytest.mark.parametrize("kind", METADATA)
def test_metadata_that_inflate_to_very_much_cost_nothing_and_turn_nothing(kind: str) -> None:
    data = png(32, 32, PIXELS, METADATA[kind]())
    assert probe(data, LIMIT)[:3] == ("PNG", 32, 32)
    assert decode(data, WHITE, LIMIT).shape == (32, 32, 3)


@settings(deadline=None, max_examples=60)
@given(
    size=st.tuples(st.integers(1, 300), st.integers(1, 300)),
    mode=st.sampled_from(["1", "L", "LA", "P", "RGB", "RGBA", "I;16"]),
    level=st.sampled_from([0, 1, 9]),
    is_noise=st.booleans(),
)
def test_no_png_that_is_whole_is_refused_for_its_lengths(
    size: tuple[int, int], mode: str, level: int, is_noise: bool
) -> None:
    values = np.random.default_rng(1).integers(0, 256 if is_noise else 1, (size[1], size[0], 3), np.uint8)
    image = Image.fromarray(values).convert("L" if mode == "I;16" else mode).convert(mode)
    assert probe(saved(image, "PNG", compress_level=level), LIMIT)[1:3] == size


WHOLE = {
    "png of zeros": lambda: png(2000, 2000, zeros(2000 * 6001)),
    "png flushed behind each byte": lambda: png(300, 9, _flushed(9 * 901)),
    "jpeg of one colour": lambda: saved(Image.new("RGB", (2000, 2000), 9), "JPEG", optimize=True, subsampling=2),
    "jpeg grey, of one colour": lambda: saved(Image.new("L", (2000, 2000), 9), "JPEG", optimize=True),
    "jpeg progressive, of one colour": lambda: saved(
        Image.new("RGB", (2000, 2000), 9), "JPEG", progressive=True, optimize=True
    ),
    "gif of one colour": lambda: saved(Image.new("P", (4000, 4000), 1), "GIF"),
    "tiff of a strip a row": lambda: saved(Image.new("L", (8, 5000), 9), "TIFF", tiffinfo={278: 1}),
    "bmp from below": lambda: saved(Image.new("RGB", (301, 300), 9), "BMP"),
    "bmp of bits": lambda: saved(Image.new("1", (301, 300)), "BMP"),
    "ppm of text without an end of line": lambda: b"P2 2 2 9\n1 2 3 4",
    "pbm of text without gaps": lambda: b"P1 2 2\n1010",
}


def _flushed(size: int) -> bytes:
    deflate = zlib.compressobj(0)
    rows = (deflate.compress(bytes(901)) + deflate.flush(zlib.Z_SYNC_FLUSH) for _ in range(size // 901))
    return b"".join([*rows, deflate.flush()])


@pytest.mark.parametrize("kind", WHOLE)
def test_what_is_whole_is_decoded_however_well_or_badly_it_is_compressed(kind: str) -> None:
    data = WHOLE[kind]()
    found = probe(data, LIMIT)
    assert decode(data, WHITE, LIMIT).shape == (found.height, found.width, 3)


LARGE = {
    "JPEG": lambda: saved(Image.new("L", (SIDE, SIDE), 9), "JPEG"),
    "PNG": lambda: png(SIDE, SIDE, zeros(SIDE * (3 * SIDE + 1))),
    "WEBP": lambda: saved(Image.new("RGB", (5000, 5000), 9), "WEBP", method=0),
    "GIF": lambda: saved(Image.new("P", (SIDE, SIDE), 1), "GIF"),
    "BMP": lambda: saved(Image.new("L", (SIDE, SIDE)), "BMP"),
    "TIFF": lambda: saved(Image.new("L", (SIDE, SIDE)), "TIFF", compression="tiff_lzw"),
    "PPM": lambda: b"P5 8000 8000 255\n" + bytes(LIMIT),
}


@pytest.mark.parametrize("format", LARGE)
def test_a_picture_near_the_pixel_limit_is_large_work_and_a_usual_one_is_not(format: str) -> None:
    assert 0 < probe(saved(Image.new("RGB", (1920, 1080), 9), format), LIMIT).work < LARGE_WORK
    assert probe(LARGE[format](), LIMIT).work >= LARGE_WORK


def test_rows_of_one_pixel_and_bytes_of_noise_are_work_too() -> None:
    tall = png(1, LIMIT // 8, zeros(4 * (LIMIT // 8)))
    assert probe(tall, LIMIT).work > 8 * probe(png(LIMIT // 8, 1, zeros(3 * (LIMIT // 8) + 1)), LIMIT).work
    pixels = np.random.default_rng(0).integers(0, 256, (600, 600, 3), np.uint8)
    noise, plain = (saved(image, "PNG") for image in (Image.fromarray(pixels), Image.new("RGB", (600, 600))))
    assert probe(noise, LIMIT).work > 4 * probe(plain, LIMIT).work
