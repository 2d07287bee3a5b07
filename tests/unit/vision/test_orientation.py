"""Every stored orientation comes out upright, and metadata that are no good change nothing."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image, ImageOps

from foveal.vision.decode import decode, probe

WHITE = (255, 255, 255)
EXACT = {
    "jpeg": ("JPEG", {}),
    "png": ("PNG", {}),
    "webp": ("WEBP", {"lossless": True}),
    "tiff": ("TIFF", {}),
    "tiff lzw": ("TIFF", {"compression": "tiff_lzw"}),
    "tiff deflate": ("TIFF", {"compression": "tiff_adobe_deflate"}),
    "big tiff": ("TIFF", {"big_tiff": True}),
    "jpeg progressive": ("JPEG", {"progressive": True}),
}
SIDES = [(1, 40), (40, 1), (1, 1)]


def exif(orientation: object) -> Image.Exif:
    tags = Image.Exif()
    tags[0x0112] = orientation
    tags[0x010F] = "a maker of cameras"
    return tags


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", EXACT)
def test_all_eight_orientations_come_out_upright(drawing, encode, kind, orientation) -> None:
    format, options = EXACT[kind]
    data = encode(drawing, format, exif=exif(orientation), **options)
    expected = ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB")
    assert probe(data, 10**6)[:3] == (format, *expected.size)
    pixels = decode(data, WHITE, 10**6)
    assert np.array_equal(pixels, np.asarray(expected))
    assert pixels.flags.c_contiguous
    assert expected.size == ((32, 48) if orientation >= 5 else (48, 32))


@pytest.mark.parametrize("orientation", range(2, 9))
@pytest.mark.parametrize("mode", ["L", "CMYK"])
def test_other_colour_modes_are_turned_too(drawing, encode, mode, orientation) -> None:
    data = encode(drawing.convert(mode), "JPEG", exif=exif(orientation))
    expected = ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB")
    assert np.array_equal(decode(data, WHITE, 10**6), np.asarray(expected))


@pytest.mark.parametrize("orientation", range(2, 9))
@pytest.mark.parametrize("size", SIDES, ids=str)
def test_a_picture_of_one_line_is_turned_into_memory_that_goes_forwards(encode, size, orientation) -> None:
    image = Image.fromarray(np.arange(size[0] * size[1] * 3, dtype=np.uint8).reshape(size[1], size[0], 3))
    data = encode(image, "PNG", exif=exif(orientation))
    pixels = decode(data, WHITE, 10**6)
    assert np.array_equal(pixels, np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data)))))
    assert all(stride > 0 for stride in pixels.strides)  # torch reads no others


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("format", ["AVIF", "HEIC"])
def test_a_picture_is_turned_as_its_container_says_and_once(drawing, encode, format, orientation) -> None:
    if format == "HEIC":
        pillow_heif = pytest.importorskip("pillow_heif")
        stream = io.BytesIO()
        pillow_heif.from_pillow(drawing).save(stream, quality=95, exif=exif(orientation).tobytes())
        data = stream.getvalue()
    else:
        data = encode(drawing, "AVIF", exif=exif(orientation), quality=95)
    tagged = drawing.copy()
    tagged.getexif()[0x0112] = orientation
    upright = ImageOps.exif_transpose(tagged)
    assert probe(data, 10**6)[:3] == (format, *upright.size)
    assert np.abs(decode(data, WHITE, 10**6).astype(int) - np.asarray(upright)).mean() < 12


def test_a_picture_taken_with_two_lenses_is_turned_too(drawing, encode) -> None:
    data = encode(drawing, "MPO", save_all=True, append_images=[drawing], exif=exif(8))
    assert probe(data, 10**6)[:3] == ("JPEG", 32, 48)
    assert decode(data, WHITE, 10**6).shape == (48, 32, 3)


def test_the_exif_chunk_of_a_png_may_stand_behind_the_pixels(drawing, encode) -> None:
    data = encode(drawing, "PNG")
    body = b"eXIf" + exif(8).tobytes().removeprefix(b"Exif\0\0")
    chunk = struct.pack(">I", len(body) - 4) + body + struct.pack(">I", zlib.crc32(body))
    data = data[:-12] + chunk + data[-12:]
    assert probe(data, 10**6)[:3] == ("PNG", 32, 48)
    assert np.array_equal(decode(data, WHITE, 10**6), np.asarray(drawing.transpose(Image.Transpose.ROTATE_90)))


@pytest.mark.parametrize("orientation", [0, 9, 255, 65535])
@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP"])
def test_an_orientation_that_does_not_exist_turns_nothing(drawing, encode, format, orientation) -> None:
    assert probe(encode(drawing, format, exif=exif(orientation)), 10**6)[:3] == (format, 48, 32)


def reseal(data: bytes) -> bytes:
    """A PNG with the checksum of its EXIF chunk made right again."""
    at = data.find(b"eXIf")
    if at < 0:
        return data
    end = at + 4 + int.from_bytes(data[at - 4 : at], "big")
    return data[:end] + struct.pack(">I", zlib.crc32(data[at:end])) + data[end + 4 :]


@pytest.mark.parametrize("damage", ["header", "directory", "everything", "checksum"])
@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP", "AVIF"])
def test_bad_exif_never_fails_a_good_picture(drawing, encode, format, damage) -> None:
    good = encode(drawing, format, exif=exif(1) if format != "AVIF" else exif(6))
    tiff = exif(1).tobytes().removeprefix(b"Exif\0\0")
    at = good.rindex(tiff[:4])
    broken = {
        "header": good[:at] + b"ZZZZ" + good[at + 4 :],
        "directory": good[:at] + tiff[:4] + b"\xff\xff\xff\xf0" + good[at + 8 :],
        "everything": good[:at] + bytes(len(tiff) // 2) + good[at + len(tiff) // 2 :],
        "checksum": good[: at + 8] + b"\x7f" + good[at + 9 :],
    }[damage]
    broken = broken if damage == "checksum" else reseal(broken)
    assert probe(broken, 10**6)[:3] == probe(good, 10**6)[:3]
    assert np.array_equal(decode(broken, WHITE, 10**6), decode(good, WHITE, 10**6))
