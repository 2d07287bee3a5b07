"""The header alone says what a picture will cost, and limits hold before any buffer is made."""

from __future__ import annotations

import struct
import zlib

import numpy as np
import pytest
from PIL import Image, ImageFile

from foveal.errors import FovealError, TooLarge, Undecodable
from foveal.vision.decode import decode, probe

WHITE = (255, 255, 255)
FORMATS = ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF", "PPM"]


def png_that_claims(width: int, height: int) -> bytes:
    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    pixels = zlib.compress(bytes(1000))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


@pytest.mark.parametrize("format", FORMATS)
def test_probe_names_format_and_size_and_decodes_no_pixel(drawing, encode, format, monkeypatch) -> None:
    data = encode(drawing, format)

    def refuse(*_: object) -> None:
        raise AssertionError("pixels were decoded")

    monkeypatch.setattr(ImageFile.ImageFile, "load", refuse)
    monkeypatch.setattr(Image.Image, "load", refuse)
    assert probe(data, 48 * 32)[:3] == (format, 48, 32)


@pytest.mark.parametrize("format", FORMATS)
def test_more_pixels_than_the_limit_are_too_large(drawing, encode, format) -> None:
    data = encode(drawing, format)
    for call in (lambda: probe(data, 48 * 32 - 1), lambda: decode(data, WHITE, 48 * 32 - 1)):
        with pytest.raises(TooLarge, match=r"48 x 32 = 1536 .* 1535 pixels \(--max-image-pixels\)"):
            call()


@pytest.mark.parametrize("size", [(60000, 60000), (2**31 - 1, 1), (2**31 - 1, 2**31 - 1)], ids=str)
def test_a_bomb_is_refused_before_any_buffer(size, monkeypatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("the reader was opened")

    monkeypatch.setattr("foveal.vision.decode.open_image", refuse)
    for call in (lambda d: probe(d, 10**8), lambda d: decode(d, WHITE, 10**8)):
        with pytest.raises(TooLarge):
            call(png_that_claims(*size))


@pytest.mark.parametrize("kind", [b"VP8X", b"VP8L", b"VP8 "])
def test_a_webp_bomb_is_refused_before_its_decoder_is_made(kind, monkeypatch) -> None:
    heads = {
        b"VP8X": bytes(8) + b"\xff\xff\x00" * 2,
        b"VP8L": bytes(4) + b"\x2f" + b"\xff\xff\xff\x0f" + bytes(5),
        b"VP8 ": bytes(7) + b"\x9d\x01\x2a" + b"\xff\x3f\xff\x3f",
    }
    monkeypatch.setattr("foveal.vision.decode.open_image", lambda *_: pytest.fail("the reader was opened"))
    with pytest.raises(TooLarge):
        probe(b"RIFF\x40\0\0\0WEBP" + kind + heads[kind] + bytes(40), 10**7)


def test_a_small_tiff_with_huge_tiles_is_undecodable() -> None:
    tags = {256: 100, 257: 100, 258: 8, 259: 5, 262: 1, 277: 1, 322: 65536, 323: 65536, 324: 134, 325: 50}
    directory = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags.items())
    data = b"II*\0" + struct.pack("<IH", 8, len(tags)) + directory + bytes(4 + 50)
    with pytest.raises(Undecodable, match="tiles"):
        probe(data, 10**8)


@pytest.mark.parametrize("size", [(0, 0), (0, 5), (5, 0)], ids=str)
def test_a_picture_without_area_is_undecodable(size) -> None:
    with pytest.raises(Undecodable):
        probe(png_that_claims(*size), 10**6)


def test_a_size_that_the_pixels_do_not_fill_is_undecodable() -> None:
    with pytest.raises(Undecodable):
        decode(png_that_claims(200, 200), WHITE, 10**6)


def test_a_jpeg_that_names_two_sizes_is_undecodable(drawing, encode) -> None:
    data = encode(drawing, "JPEG")
    at = data.index(b"\xff\xc0")
    length = 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    other = bytearray(data[at : at + length])
    other[5:9] = struct.pack(">HH", 8, 8)
    with pytest.raises(Undecodable):
        decode(data[:at] + bytes(other) + data[at:], WHITE, 10**6)


@pytest.mark.parametrize(
    "wrap", [bytes, memoryview, lambda b: np.frombuffer(b, np.uint8)], ids=["bytes", "view", "array"]
)
def test_bytes_views_and_arrays_are_read_alike(drawing, encode, wrap) -> None:
    data = wrap(encode(drawing, "PNG"))
    assert probe(data, 10**6)[:3] == ("PNG", 48, 32)
    assert np.array_equal(decode(data, WHITE, 10**6), np.asarray(drawing))


def test_messages_show_nothing_of_the_inside(drawing, encode) -> None:
    for format in FORMATS:
        data = bytearray(encode(drawing, format))
        data[len(data) // 3 :] = b"\xa5" * (len(data) - len(data) // 3)
        for call in (lambda d: probe(d, 10**6), lambda d: decode(d, WHITE, 10**6)):
            try:
                call(bytes(data))
            except FovealError as error:
                assert not any(word in error.message for word in ("BytesIO", "0x", "PIL", "/", "Error"))
