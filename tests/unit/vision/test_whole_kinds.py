"""What holds for one small file of every kind that is read: modes, sizes, cuts, lies."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image, ImageOps

from foveal.errors import FovealError, TooLarge, Undecodable
from foveal.vision import codec
from foveal.vision.decode import decode, probe
from tests.fuzz.seeds import rle_bmp, seeds

WHITE = (255, 255, 255)
SECOND_PICTURE = {"mpo", "tiff pages"}
LAST_DIGITS = {"ppm text 1", "ppm text 2", "ppm text 3"}
"""A cut inside the last number leaves a number."""
LOSSY_ELSEWHERE = {"jpeg cmyk", "jpeg ycck", "tiff lab", "tiff cmyk", "png 16", "tiff 16", "pgm 16", "ppm of 10 bits"}
"""Kinds that Pillow turns into RGB by other rules than ours; they have tests of their own."""


@pytest.mark.parametrize("kind", seeds())
def test_header_and_pixels_agree_on_the_size(kind: str) -> None:
    found = probe(seeds()[kind], 10**6)
    assert decode(seeds()[kind], WHITE, 10**6).shape == (found.height, found.width, 3)


@pytest.mark.parametrize("kind", [k for k in seeds() if not k.startswith("heic") and k not in LOSSY_ELSEWHERE])
def test_what_is_shown_is_what_others_show(kind: str) -> None:
    image = Image.open(io.BytesIO(seeds()[kind]))
    shown = image.convert("RGBA") if image.has_transparency_data else image.convert("RGB")
    canvas = Image.new("RGB", shown.size, WHITE)
    canvas.paste(shown, mask=shown if shown.mode == "RGBA" else None)
    upright = canvas if kind.startswith("tiff") else ImageOps.exif_transpose(_tagged(canvas, image))
    assert np.abs(decode(seeds()[kind], WHITE, 10**6).astype(int) - np.asarray(upright)).max() <= 1


def _tagged(canvas: Image.Image, image: Image.Image) -> Image.Image:
    canvas.getexif()[0x0112] = image.getexif().get(0x0112, 1)
    return canvas


@pytest.mark.parametrize("kind", seeds())
def test_a_file_cut_anywhere_is_refused_or_nothing_was_lost(kind: str) -> None:
    data = seeds()[kind]
    good = decode(data, WHITE, 10**6)
    shortest = 8 if kind in LAST_DIGITS else 1
    for cut in range(shortest, len(data), max(1, len(data) // 150)):
        try:
            pixels = decode(data[:-cut], WHITE, 10**6)
        except FovealError as error:
            is_cut_in_its_signature = len(data) - cut < 8
            assert error.status == 422 or is_cut_in_its_signature, (cut, error)
        else:
            assert cut < 8 or kind in SECOND_PICTURE, f"{cut} bytes less were not noticed"
            assert np.array_equal(pixels, good)


@pytest.mark.parametrize("kind", seeds())
def test_more_pixels_than_allowed_are_too_large_by_header_and_by_decoding(kind: str) -> None:
    found = probe(seeds()[kind], 10**6)
    for call in (lambda limit: probe(seeds()[kind], limit), lambda limit: decode(seeds()[kind], WHITE, limit)):
        with pytest.raises(TooLarge, match="--max-image-pixels"):
            call(found.width * found.height - 1)


def test_a_tiff_whose_strips_do_not_reach_its_end_is_not_shown_half_black() -> None:
    data = bytearray(seeds()["tiff raw"])
    directory = int.from_bytes(data[4:8], "little")
    for at in range(directory + 2, directory + 2 + 12 * data[directory], 12):
        if data[at] == 1 and data[at + 1] == 1:  # tag 257, the height
            data[at + 8] = 40
    with pytest.raises(Undecodable, match="cover"):
        probe(bytes(data), 10**6)


def test_a_tiff_that_is_cut_inside_its_directory_does_not_lose_its_orientation_quietly() -> None:
    with pytest.raises(Undecodable):
        probe(seeds()["tiff group 4"][:-20], 10**6)


@pytest.mark.parametrize("limit", ["MAX_RLE_PIXELS", "MAX_RLE_BYTES"])
def test_a_large_run_length_encoded_bmp_is_refused_in_a_sentence(limit: str, monkeypatch) -> None:
    data = rle_bmp(20, 30)
    decode(data, WHITE, 10**6)
    monkeypatch.setattr(codec, limit, 599 if limit == "MAX_RLE_PIXELS" else len(data) - 1)
    with pytest.raises(TooLarge, match="save it without compression"):
        probe(data, 10**6)


@pytest.mark.parametrize("mode", ["RGB", "L", "P", "RGBA", "LA", "CMYK", "I;16", "1"])
def test_a_picture_converted_in_bands_is_the_picture_converted_whole(mode: str, encode, monkeypatch) -> None:
    pixels = np.random.default_rng(1).integers(0, 256, (70, 30, 3), dtype=np.uint8)
    image = Image.fromarray(pixels).convert("L").convert("I").point(lambda v: v * 200) if mode == "I;16" else None
    image = (image or Image.fromarray(pixels)).convert(mode)
    if mode in ("RGBA", "LA"):
        image.putalpha(Image.fromarray(pixels[..., 1]))
    options = {"transparency": 3} if mode == "P" else {}
    data = encode(image, "TIFF" if mode == "CMYK" else "PNG", **options)
    whole = decode(data, (1, 2, 3), 10**6)
    monkeypatch.setattr("foveal.vision.flatten.BAND_PIXELS", 400)
    assert np.array_equal(decode(data, (1, 2, 3), 10**6), whole)
