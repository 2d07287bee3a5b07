"""Every way to store a colour becomes opaque 8-bit RGB, by rules that are written down."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from foveal.errors import UnsupportedType
from foveal.vision.decode import decode

WHITE, BLACK, TEAL = (255, 255, 255), (0, 0, 0), (0, 128, 128)
BACKGROUNDS = pytest.mark.parametrize("background", [WHITE, BLACK, TEAL], ids=["white", "black", "teal"])


def png(width: int, height: int, depth: int, color: int, lines: bytes, **chunks: bytes) -> bytes:
    """A PNG written by hand, for what Pillow does not write. `lines` has no filter bytes."""
    stride = len(lines) // height
    raw = b"".join(b"\0" + lines[i * stride : (i + 1) * stride] for i in range(height))
    parts = {"IHDR": struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, 0), **chunks}
    parts |= {"IDAT": zlib.compress(raw), "IEND": b""}
    body = (
        struct.pack(">I", len(b)) + k.encode() + b + struct.pack(">I", zlib.crc32(k.encode() + b))
        for k, b in parts.items()
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(body)


OPAQUE = [(f, m) for f in ("PNG", "TIFF", "BMP", "GIF", "PPM") for m in ("1", "L", "P", "RGB")]


@pytest.mark.parametrize(("format", "mode"), [pair for pair in OPAQUE if pair not in {("PPM", "P"), ("GIF", "RGB")}])
def test_opaque_modes_keep_their_colours(drawing, encode, format, mode) -> None:
    image = drawing.convert(mode)
    assert np.array_equal(decode(encode(image, format), WHITE, 10**6), np.asarray(image.convert("RGB")))


@pytest.mark.parametrize("mode", ["CMYK", "YCbCr", "LAB"])
def test_other_colour_spaces_come_out_near_their_colours(encode, mode) -> None:
    from PIL import ImageCms

    image = Image.new("RGB", (16, 16), (200, 100, 50))
    if mode == "LAB":
        transform = ImageCms.buildTransform(ImageCms.createProfile("sRGB"), ImageCms.createProfile("LAB"), "RGB", "LAB")
        stored = ImageCms.applyTransform(image, transform)
    else:
        stored = image.convert(mode)
    pixels = decode(encode(stored, "TIFF"), WHITE, 10**6)
    assert pixels.shape == (16, 16, 3)
    assert np.abs(pixels.astype(int) - (200, 100, 50)).max() <= 4


def test_cmyk_jpegs_are_not_inverted(encode) -> None:
    image = Image.new("RGB", (32, 32), (200, 100, 50)).convert("CMYK")
    pixels = decode(encode(image, "JPEG", quality=95), WHITE, 10**6)
    assert np.abs(pixels.astype(int) - (200, 100, 50)).max() <= 6


@BACKGROUNDS
@pytest.mark.parametrize(
    ("format", "mode"), [("PNG", "RGBA"), ("PNG", "LA"), ("TIFF", "RGBA"), ("TIFF", "LA"), ("WEBP", "RGBA")]
)
def test_alpha_is_blended_over_the_background(encode, format, mode, background) -> None:
    alpha = np.tile(np.arange(256, dtype=np.uint8), (4, 1))
    grey = np.full_like(alpha, 60)
    stored = Image.fromarray(np.dstack([grey] * (1 if mode == "LA" else 3) + [alpha]), mode)
    options = {"lossless": True, "exact": True} if format == "WEBP" else {}
    pixels = decode(encode(stored, format, **options), background, 10**6)
    share = alpha[..., None] / 255.0
    assert np.abs(pixels - (60 * share + np.array(background) * (1 - share))).max() <= 0.51


@BACKGROUNDS
def test_hidden_colours_leave_no_trace(encode, drawing, background) -> None:
    hidden = drawing.copy()
    hidden.putalpha(0)
    assert (decode(encode(hidden, "PNG"), background, 10**6) == background).all()
    assert (decode(encode(hidden, "WEBP", lossless=True, exact=True), background, 10**6) == background).all()


@BACKGROUNDS
def test_palette_entries_may_be_transparent(encode, background) -> None:
    image = Image.fromarray(np.array([[0, 1, 2, 3]], np.uint8), "P")
    image.putpalette([255, 0, 0, 0, 255, 0, 0, 0, 255, 9, 9, 9])
    pixels = decode(encode(image, "PNG", transparency=bytes([255, 0, 128])), background, 10**6)[0]
    half = np.round(np.array([0, 0, 255]) * 128 / 255 + np.array(background) * 127 / 255)
    assert (pixels[0] == (255, 0, 0)).all() and (pixels[1] == background).all() and (pixels[3] == 9).all()
    assert np.abs(pixels[2] - half).max() <= 1
    assert (decode(encode(image, "GIF", transparency=1), background, 10**6)[0, 1] == background).all()


@BACKGROUNDS
def test_one_colour_may_be_transparent(encode, background) -> None:
    grey = Image.fromarray(np.array([[7, 8]], np.uint8))
    assert (decode(encode(grey, "PNG", transparency=8), background, 10**6) == [[[7] * 3, background]]).all()
    color = Image.fromarray(np.array([[[1, 2, 3], [1, 2, 4]]], np.uint8))
    data = encode(color, "PNG", transparency=(1, 2, 4))
    assert (decode(data, background, 10**6) == [[[1, 2, 3], background]]).all()


@pytest.mark.parametrize("depth", [1, 2, 4, 8])
def test_the_transparent_grey_is_named_in_the_depth_of_the_file(depth) -> None:
    largest = (1 << depth) - 1
    lines = bytes([largest << (8 - depth)]) if depth < 8 else bytes([255, 0])
    data = png(2, 1, depth, 0, lines, tRNS=struct.pack(">H", largest))
    assert (decode(data, TEAL, 10**6) == [[TEAL, BLACK]]).all()


@pytest.mark.parametrize(
    ("format", "mode"), [("PNG", "I;16"), ("TIFF", "I;16"), ("TIFF", "I;16B"), ("PPM", "I"), ("TIFF", "I")], ids=str
)
def test_sixteen_bits_of_grey_are_cut_to_their_high_byte(encode, format, mode) -> None:
    samples = np.array([[0, 255, 256, 0x7FFF, 0x80FF, 65535]])
    image = (
        Image.fromarray(samples.astype(np.int32), "I") if mode != "I;16" else Image.fromarray(samples.astype(np.uint16))
    )
    data = encode(image.convert(mode), format)
    assert Image.open(io.BytesIO(data)).mode == mode
    assert decode(data, WHITE, 10**6)[0].tolist() == [[v] * 3 for v in (0, 0, 1, 0x7F, 0x80, 255)]


def test_sixteen_bits_of_grey_have_a_transparent_value_to_the_last_bit() -> None:
    data = png(2, 1, 16, 0, struct.pack(">HH", 0x1234, 0x1235), tRNS=struct.pack(">H", 0x1235))
    assert (decode(data, TEAL, 10**6) == [[[0x12] * 3, TEAL]]).all()


@pytest.mark.parametrize("color", [2, 4, 6], ids=["RGB", "grey and alpha", "RGBA"])
def test_sixteen_bit_colour_is_cut_to_its_high_byte(color) -> None:
    lines = {2: (0x12FF, 0x3400, 0x5680), 4: (0x12FF, 0xFFFF), 6: (0x12FF, 0x3400, 0x5680, 0xFFFF)}[color]
    pixel = decode(png(1, 1, 16, color, struct.pack(f">{len(lines)}H", *lines)), WHITE, 10**6)[0, 0]
    assert pixel.tolist() == ([0x12] * 3 if color == 4 else [0x12, 0x34, 0x56])


def test_a_transparent_sixteen_bit_colour_is_found_by_its_high_bytes() -> None:
    samples = struct.pack(">6H", 1, 2, 3, 0xFFFF, 0xFFFF, 0xFFFF)
    data = png(2, 1, 16, 2, samples, tRNS=struct.pack(">3H", 0xFFFF, 0xFFFF, 0xFFFF))
    assert (decode(data, TEAL, 10**6) == [[BLACK, TEAL]]).all()


@pytest.mark.parametrize("format", ["TIFF", "PPM"])
def test_floating_point_samples_are_refused_and_not_guessed(drawing, encode, format) -> None:
    with pytest.raises(UnsupportedType, match="floating-point"):
        decode(encode(drawing.convert("F"), format), WHITE, 10**6)


@pytest.mark.parametrize("profile", [b"", b"no profile at all", bytes(3 << 20)], ids=["empty", "broken", "huge"])
@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_colour_profiles_change_and_fail_nothing(drawing, encode, format, profile) -> None:
    options = {"lossless": True} if format == "WEBP" else {}
    plain = decode(encode(drawing, format, **options), WHITE, 10**6)
    assert np.array_equal(decode(encode(drawing, format, icc_profile=profile, **options), WHITE, 10**6), plain)


def test_text_that_unpacks_to_megabytes_does_not_fail_a_png(drawing, encode) -> None:
    from PIL.PngImagePlugin import PngInfo

    text = PngInfo()
    text.add_text("story", "a" * (5 << 20), zip=True)
    assert np.array_equal(decode(encode(drawing, "PNG", pnginfo=text), WHITE, 10**6), np.asarray(drawing))


@pytest.mark.parametrize("format", ["GIF", "PNG", "WEBP", "TIFF", "AVIF", "MPO"])
def test_the_first_frame_of_many_is_taken(drawing, encode, format) -> None:
    frames = [drawing.transpose(Image.Transpose.ROTATE_180), drawing.copy()]
    options = {"lossless": True} if format == "WEBP" else {}
    data = encode(drawing, format, save_all=True, append_images=frames, **options)
    first = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
    assert np.array_equal(decode(data, WHITE, 10**6), first)
    assert np.abs(first.astype(int) - np.asarray(drawing)).mean() < 12


@BACKGROUNDS
def test_what_the_first_frame_of_a_gif_leaves_open_is_background(background) -> None:
    small = Image.new("P", (2, 2), 1)
    small.putpalette([200, 0, 0, 0, 0, 200])
    stream = io.BytesIO()
    small.save(stream, "GIF")
    data = bytearray(stream.getvalue())
    data[6:10] = struct.pack("<HH", 4, 3)
    frame = data.index(b",", 13)
    data[frame + 1 : frame + 5] = struct.pack("<HH", 1, 1)
    expected = np.full((3, 4, 3), background, np.uint8)
    expected[1:3, 1:3] = (0, 0, 200)
    assert np.array_equal(decode(bytes(data), background, 10**6), expected)
