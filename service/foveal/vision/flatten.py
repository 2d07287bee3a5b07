"""Any picture mode to opaque 8-bit RGB. What a mode means is written here for each; nothing is guessed."""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageCms

from foveal.errors import UnsupportedType
from foveal.vision.codec import library_call
from foveal.vision.sniff import Format

Pixels = npt.NDArray[np.uint8]
Color = tuple[int, int, int]
Key = int | tuple[int, ...]

BAND_PIXELS = 1 << 20
"""Large pictures are converted piece by piece: whole, the copies that a mode needs would add up to a gigabyte."""
_WIDE_MODES = ("I;16", "I;16L", "I;16B", "I;16N", "I")
_ALPHA_MODES = ("RGBA", "LA", "PA", "RGBa", "La")


def flatten(image: Image.Image, format: Format, background: Color) -> Pixels:
    """RGB pixels [H, W, 3] of a decoded picture, laid over `background` where it is transparent.

    Alpha blends; colours under alpha 0 leave no trace. Colour profiles are ignored, as the reference processors do.
    """
    if image.mode == "F":
        raise UnsupportedType(
            f"the bytes are {format} with floating-point samples, whose white is not defined; "
            "convert the image to 8 or 16 bits"
        )
    lines = max(1, BAND_PIXELS // image.width)
    if image.height <= lines:
        return _flatten_band(image, format, background)
    pixels = np.empty((image.height, image.width, 3), np.uint8)
    for top in range(0, image.height, lines):
        bottom = min(top + lines, image.height)
        with library_call(format):
            band = image.crop((0, top, image.width, bottom))
        pixels[top:bottom] = _flatten_band(band, format, background)
    return pixels


def _flatten_band(image: Image.Image, format: Format, background: Color) -> Pixels:
    key = image.info.get("transparency")
    if image.mode in _WIDE_MODES:
        return _from_wide(image, format, key, background)
    if image.mode in _ALPHA_MODES or _has_transparent_palette(image, key):
        return _compose(image, format, background)
    pixels = _as_rgb(image, format)
    return _paint_key(pixels, pixels, key, background) if isinstance(key, int | tuple) else pixels


def _has_transparent_palette(image: Image.Image, key: object) -> bool:
    if image.mode != "P":
        return False
    return key is not None or (image.palette is not None and image.palette.mode.endswith("A"))


def _compose(image: Image.Image, format: Format, background: Color) -> Pixels:
    with library_call(format):
        colors = image if image.mode == "RGBA" else image.convert("RGBA")
        canvas = Image.new("RGB", image.size, background)
        canvas.paste(colors, mask=colors)
        return np.asarray(canvas)


def _as_rgb(image: Image.Image, format: Format) -> Pixels:
    with library_call(format):
        if image.mode == "RGB":
            return np.asarray(image)
        if image.mode == "LAB":
            converted = ImageCms.applyTransform(image, _lab_to_rgb())
            assert converted is not None
            return np.asarray(converted)
        return np.asarray(image.convert("RGB"))


def _from_wide(image: Image.Image, format: Format, key: object, background: Color) -> Pixels:
    """Grey samples of 16 bits by their high byte; wider integers hold 16 bits of grey or are clipped to it."""
    with library_call(format):
        samples = np.asarray(image)
    high = (np.clip(samples, 0, 0xFFFF) >> 8).astype(np.uint8)
    pixels = np.repeat(high[..., np.newaxis], 3, axis=2)
    return _paint_key(pixels, samples[..., np.newaxis], key, background) if isinstance(key, int) else pixels


def _paint_key(pixels: Pixels, samples: npt.NDArray[np.integer], key: Key, background: Color) -> Pixels:
    """Replace the pixels whose samples equal the one transparent colour; one copy."""
    hidden = (samples == np.asarray(key)).all(axis=2, keepdims=True)
    return np.where(hidden, np.asarray(background, np.uint8), pixels)


@functools.cache
def _lab_to_rgb() -> ImageCms.ImageCmsTransform:
    lab, rgb = ImageCms.createProfile("LAB"), ImageCms.createProfile("sRGB")
    return ImageCms.buildTransform(lab, rgb, "LAB", "RGB")
