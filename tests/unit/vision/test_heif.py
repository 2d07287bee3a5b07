"""HEIC, where its extra is installed: as every other format."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

from foveal.errors import Undecodable
from foveal.vision.decode import decode, probe

pillow_heif = pytest.importorskip("pillow_heif")
WHITE = (255, 255, 255)


def heic(*images: Image.Image, **options: Any) -> bytes:
    found = pillow_heif.from_pillow(images[0])
    for image in images[1:]:
        found.add_from_pillow(image)
    stream = io.BytesIO()
    found.save(stream, quality=95, **options)
    return stream.getvalue()


@pytest.mark.parametrize("background", [(255, 255, 255), (0, 0, 0), (0, 128, 128)], ids=str)
def test_alpha_is_blended_over_the_background(drawing, background) -> None:
    image = Image.new("RGB", (64, 64), (200, 60, 20))
    image.putalpha(Image.fromarray(np.repeat(np.array([[0, 255]], np.uint8), 32, 1).repeat(64, 0)))
    pixels = decode(heic(image), background, 10**6).astype(int)
    assert np.abs(pixels[:, :28] - background).max() <= 3
    assert np.abs(pixels[:, 36:] - (200, 60, 20)).max() <= 8


def test_the_first_picture_of_many_is_taken(drawing) -> None:
    data = heic(drawing, drawing.transpose(Image.Transpose.ROTATE_180), drawing.resize((20, 20)))
    assert probe(data, 10**6)[:3] == ("HEIC", 48, 32)
    assert np.abs(decode(data, WHITE, 10**6).astype(int) - np.asarray(drawing)).mean() < 12


@pytest.mark.parametrize("mode", ["L", "I;16"])
def test_grey_and_more_bits_are_encoded(mode: str) -> None:
    ramp = np.tile(np.arange(0, 256, 4, dtype=np.uint8), (64, 1))
    image = Image.fromarray(ramp) if mode == "L" else Image.fromarray(ramp.astype(np.uint16) << 8)
    pixels = decode(heic(image), WHITE, 10**6).astype(int)
    assert np.abs(pixels - ramp[..., None]).max() <= 8 and (pixels[..., 0] == pixels[..., 2]).all()


def test_a_file_without_pixels_is_undecodable(drawing) -> None:
    with pytest.raises(Undecodable):
        decode(b"\0\0\0\x18ftypheic\0\0\0\0mif1heic", WHITE, 10**6)
