"""Encoded bytes to upright RGB pixels, with every claim of size tested before a buffer is made.

Truncated data are refused, never shown with a grey half; of animations and many pages the first is taken.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import ExifTags, ImageFile, TiffImagePlugin

from foveal.errors import TooLarge, Undecodable
from foveal.vision import gif, png, ppm, tiff
from foveal.vision.codec import library_call, open_image, png_orientation, stored_orientation, webp_canvas
from foveal.vision.flatten import Color, Pixels, flatten
from foveal.vision.jpeg import Frame, check_length, count_scans, decode_jpeg, read_frame
from foveal.vision.sniff import Format, identify
from foveal.vision.work import decode_work

Encoded = bytes | memoryview | Pixels
_BYTES_PER_PIXEL: dict[Format, int] = {"WEBP": 12, "AVIF": 10, "HEIC": 8}
"""What these decoders take for their own buffers, at least; measured between 7 and 17."""
_STORED_BYTES = {"1": 1, "L": 1, "P": 1, "I;16": 2, "I;16B": 2, "LA": 4}
"""Of a pixel of a mode in Pillow's memory; 4 of any other."""
_MAX_ROW_BITS = (1 << 31) - 1
"""Pillow decodes no longer rows."""
_FACTOR = "foveal factor"
"""Where a reader keeps what its pixels take beyond the usual of its format (vision/work.py)."""
_LZMA_FACTOR = 3.0


class ProbedImage(NamedTuple):
    """What a header says: the format by its common name, the upright size in pixels, and how much work it will be."""

    format: Format
    width: int
    height: int
    work: int = 0


def probe(data: Encoded, max_pixels: int) -> ProbedImage:
    """Format, upright size and work, from the header and the lengths of the parts alone: nothing is inflated.

    Raises UnsupportedType, Undecodable or, above `max_pixels`, TooLarge, and MemoryError where decoding would. Copies
    the bytes once, except of a PNG.
    """
    view = _view(data)
    format = identify(view)
    factor = 1.0
    if format == "PPM":
        stored = size = _ppm_header(view, max_pixels)[1:3]
    elif format == "PNG":
        head = _png_header(view, max_pixels)
        stored, factor = (head.width, head.height), max(head.pixel_bits / 24, 0.5)
        size = _turned(stored, png_orientation(png.survey(view)))
    else:
        image = _open(view, format, max_pixels)
        stored, factor = image.size, image.info.get(_FACTOR, 1.0)
        size = _turned(stored, _orientation(image, view, format))
    return ProbedImage(format, *size, decode_work(format, *stored, len(view), factor))


def decode(data: Encoded, background: Color, max_pixels: int) -> Pixels:
    """Upright RGB pixels [H, W, 3], contiguous; transparency is laid over `background`.

    A JPEG is decoded straight from `data`; a PPM of bytes is a view of them; other formats copy the encoded bytes
    once and the pixels once. Turning upright copies the pixels once more. Raises as `probe`, and MemoryError.
    """
    view = _view(data)
    format = identify(view)
    if format == "PPM":
        return np.ascontiguousarray(ppm.pixels(view, _ppm_header(view, max_pixels)))
    image = _open(view, format, max_pixels)
    orientation = _orientation(image, view, format)
    width, height = _turned(image.size, orientation)
    pixels = _decode_stored(image, view, format, background)
    # Pillow has turned a TIFF while it decoded
    upright = pixels if format == "TIFF" else turn(pixels, orientation)
    if upright.shape != (height, width, 3):
        raise Undecodable(f"the {format} image is damaged: it names two different sizes")
    return np.ascontiguousarray(upright)


def turn(pixels: Pixels, orientation: int) -> Pixels:
    """The upright picture of one that was stored in an EXIF orientation, 1 to 8. One copy, none for 1."""
    if orientation == 1:
        return pixels
    # whole pixels as one value each: moving three bytes at once is twice as fast as moving each
    stored: npt.NDArray[Any] = np.ascontiguousarray(pixels).view("V3")[..., 0]
    turned = {
        2: stored[:, ::-1],
        3: stored[::-1, ::-1],
        4: stored[::-1],
        5: stored.T,
        6: stored[::-1].T,
        7: stored[::-1, ::-1].T,
        8: stored.T[::-1],
    }[orientation]
    # an array of one column that goes backwards counts as contiguous, so it has to be copied by order
    return turned.copy()[..., np.newaxis].view(np.uint8)


def _view(data: Encoded) -> memoryview:
    return data.data if isinstance(data, np.ndarray) else memoryview(data)


def _ppm_header(view: memoryview, max_pixels: int) -> ppm.Header:
    head = ppm.header(view)
    _check_pixels(head.width, head.height, max_pixels)
    ppm.check_length(view, head)
    return head


def _png_header(view: memoryview, max_pixels: int) -> png.Header:
    head = png.header(view)
    _check_pixels(head.width, head.height, max_pixels)
    _check_row(head.width, head.pixel_bits)
    stored = {0: 1, 3: 1}.get(head.color, 4)
    _ask_for_memory(head.width, head.height, stored + 3)
    return head


def _open(view: memoryview, format: Format, max_pixels: int) -> ImageFile.ImageFile:
    frame = Frame()
    if format == "PNG":
        _png_header(view, max_pixels)
    elif format == "WEBP":
        width, height = webp_canvas(view)
        _check_pixels(width, height, max_pixels)
        _ask_for_memory(width, height, _BYTES_PER_PIXEL[format])
    elif format == "JPEG":
        frame = read_frame(view)  # before the reader is opened, whose header loops are in Python
    elif format == "GIF":
        gif.check_start(view)
    elif format == "TIFF":
        tiff.check_directory(view)
    image = open_image(view, format)
    _check_pixels(*image.size, max_pixels)
    _check_claims(image, view, format, frame)
    if isinstance(image, TiffImagePlugin.TiffImageFile):
        _check_tiles(image, max_pixels)
    return image


def _check_claims(image: ImageFile.ImageFile, view: memoryview, format: Format, frame: Frame) -> None:
    """Refuse what the size and the lengths tell, before a buffer is made for it."""
    if format == "JPEG":
        check_length(frame, *image.size, len(view))
        image.info[_FACTOR] = 1 + count_scans(view, frame, *image.size) / 4
    elif format == "TIFF":
        image.info[_FACTOR] = _LZMA_FACTOR if image.info.get("compression") == "lzma" else 1.0
    elif format == "GIF" and image.tile and image.tile[0].extents is not None:
        left, top, right, bottom = image.tile[0].extents
        gif.check_frame(right - left, bottom - top, len(view))
    elif format == "BMP":
        _check_lines(image, len(view))
    stored = 0 if format == "JPEG" else _STORED_BYTES.get(image.mode, 4)
    _check_row(image.width, 8 * stored)
    _ask_for_memory(*image.size, _BYTES_PER_PIXEL.get(format, stored + 3))


def _check_lines(image: ImageFile.ImageFile, num_bytes: int) -> None:
    """Of a BMP without compression, whose lines have one length."""
    tile = image.tile[0]
    if tile.codec_name != "raw" or not isinstance(tile.args, tuple):
        return
    last = tile.offset + tile.args[1] * (image.height - 1)
    if last >= num_bytes:
        raise Undecodable(f"the BMP image is truncated: its last line would begin at byte {last} of {num_bytes}")


def _check_row(width: int, bits: int) -> None:
    if width * bits > _MAX_ROW_BITS:
        raise TooLarge(
            f"a row of the image has {width} pixels, {width * bits // 8} bytes; rows of {_MAX_ROW_BITS // 8} bytes can "
            "be decoded: make it narrower"
        )


def _check_tiles(image: TiffImagePlugin.TiffImageFile, max_pixels: int) -> None:
    """A small TIFF may claim huge tiles, each of which is decoded whole, or strips that leave a part of it black."""
    width, height = image.tag_v2.get(TiffImagePlugin.TILEWIDTH), image.tag_v2.get(TiffImagePlugin.TILELENGTH)
    if isinstance(width, int) and isinstance(height, int) and width * height > max_pixels:
        raise Undecodable("the TIFF image is damaged: its tiles are larger than an image may be")
    pieces = {tile.extents for tile in image.tile if tile.extents is not None}
    covered = sum((right - left) * (lower - upper) for left, upper, right, lower in pieces)
    if covered < image.width * image.height:
        raise Undecodable("the TIFF image is truncated: its strips or tiles do not cover it")


def _check_pixels(width: int, height: int, max_pixels: int) -> None:
    if width * height > max_pixels:
        raise TooLarge(
            f"the image is {width} x {height} = {width * height} pixels large; "
            f"the limit is {max_pixels} pixels (--max-image-pixels)"
        )


def _ask_for_memory(width: int, height: int, bytes_per_pixel: int) -> None:
    """Raise MemoryError now where decoding would later, some of whose decoders call a lack of memory a damaged file."""
    np.empty((height, width, bytes_per_pixel), np.uint8)


def _orientation(image: ImageFile.ImageFile, view: memoryview, format: Format) -> int:
    if format == "PNG":
        return png_orientation(png.survey(view))
    if format == "HEIC":
        return 1  # its container turns the picture, whatever the metadata repeat
    if isinstance(image, TiffImagePlugin.TiffImageFile) and ExifTags.Base.Orientation in image.tag_v2:
        return 1  # Pillow gives the upright size of a TIFF already
    return stored_orientation(image)


def _turned(size: tuple[int, int], orientation: int) -> tuple[int, int]:
    return (size[1], size[0]) if orientation >= 5 else size


def _decode_stored(image: ImageFile.ImageFile, view: memoryview, format: Format, background: Color) -> Pixels:
    """Opaque RGB pixels as stored, not yet turned."""
    if format == "JPEG" and (fast := decode_jpeg(view, image)) is not None:
        return fast
    extents = image.tile[0][1] if format == "GIF" and image.tile else None
    if format == "GIF":
        gif.check_end(view)
    with library_call(format):
        image.load()
        ends_blank = format == "PNG" and image.crop((0, max(0, image.height - 2), *image.size)).getbbox() is None
    if ends_blank:
        png.check_pixel_data(view)
    pixels = flatten(image, format, background)
    return pixels if extents is None else _uncover(pixels, extents, background)


def _uncover(pixels: Pixels, extents: tuple[int, int, int, int], background: Color) -> Pixels:
    """What the first frame of a GIF does not cover is transparent; the decoder fills it with some colour."""
    left, top, right, bottom = extents
    if extents == (0, 0, pixels.shape[1], pixels.shape[0]):
        return pixels
    canvas = np.empty_like(pixels)
    canvas[:] = background
    canvas[top:bottom, left:right] = pixels[top:bottom, left:right]
    return canvas
