"""The only door to the decoder library: which readers may run, and what their errors mean.

Readers are named one by one, never looked up, so no other plugin of the library is imported or tried. Whatever a
reader raises on hostile bytes means that the picture is damaged; the guard stands around library calls only, so
an error of our own code is never taken for a bad picture.
"""

from __future__ import annotations

import io
import logging
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from PIL import (
    AvifImagePlugin,
    BmpImagePlugin,
    ExifTags,
    GifImagePlugin,
    Image,
    ImageFile,
    ImageOps,
    JpegImagePlugin,
    PngImagePlugin,
    TiffImagePlugin,
    WebPImagePlugin,
)

from foveal.errors import TooLarge, Undecodable, UnsupportedType
from foveal.vision import heif, png
from foveal.vision.sniff import SUPPORTED, Format, refuse_format

logger = logging.getLogger("foveal.vision")
# What the library logs of a picture's faults is said below in a line of our own, by their kind.
logging.getLogger("PIL").addHandler(logging.NullHandler())
logging.getLogger("PIL").propagate = False

# Our own limit is checked before any pixel is decoded and names its setting; the library's would come on top.
Image.MAX_IMAGE_PIXELS = None
# One prep process is one core's worth of work: the pool of processes is what runs in parallel.
AvifImagePlugin.DEFAULT_MAX_THREADS = 1

MAX_RLE_PIXELS, MAX_RLE_BYTES = 8_000_000, 8 << 20
"""Of a run-length encoded BMP, which is decoded in Python: larger ones would take seconds, and nobody writes them."""
_NO_MEMORY = re.compile(r"out of memory|(can't|cannot|insufficient|failed to) (allocate )?memory", re.IGNORECASE)
_AVIF_EXIF_ITEM = re.compile(rb"(infe\x02.{7})Exif", re.DOTALL)


class _Jpeg(JpegImagePlugin.JpegImageFile):
    """Also reads the first picture of an MPO. Leaves EXIF unread at open, so that a bad one cannot fail it."""

    def _read_dpi_from_exif(self) -> None:
        return


class _Tiff(TiffImagePlugin.TiffImageFile):
    """Turns upright as the library does, but does not read the metadata directories that hang below."""

    def _open(self) -> None:
        with warnings.catch_warnings():
            # it would go on without the tags behind the cut, the orientation maybe among them
            warnings.filterwarnings("error", "Truncated File Read")
            super()._open()

    def load_end(self) -> None:
        """Called when all strips are decoded."""
        ImageOps.exif_transpose(self, in_place=True)


_READERS: dict[Format, Callable[[io.BytesIO], ImageFile.ImageFile]] = {
    "JPEG": _Jpeg,
    "PNG": PngImagePlugin.PngImageFile,
    "WEBP": WebPImagePlugin.WebPImageFile,
    "GIF": GifImagePlugin.GifImageFile,
    "BMP": BmpImagePlugin.BmpImageFile,
    "TIFF": _Tiff,
    "AVIF": AvifImagePlugin.AvifImageFile,
    "HEIC": heif.reader,
}


def ran_out_of_memory(error: Exception) -> bool:
    """True where a library says in words of its own what others say by MemoryError."""
    return bool(_NO_MEMORY.search(str(error)))


@contextmanager
def library_call(format: Format) -> Iterator[None]:
    """Around calls of the decoder library: what it raises becomes Undecodable, and is logged by its type.

    Raises MemoryError where it ran out of memory, whatever it says then: that is no fault of the bytes.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns of odd metadata, which is nobody's concern here
        try:
            yield
        except (Undecodable, MemoryError):
            raise
        except Exception as error:
            if ran_out_of_memory(error):
                raise MemoryError from None
            logger.warning("a %s image is undecodable: %s", format, type(error).__name__)
            raise Undecodable(f"the {format} image is truncated or damaged") from None


def open_image(data: memoryview, format: Format) -> ImageFile.ImageFile:
    """The picture with its header read and no pixel decoded. The bytes are copied once, for the reader to keep."""
    if format == "AVIF":
        return _open_avif(bytes(data))
    if format == "HEIC" and not heif.is_installed():
        raise UnsupportedType(
            f"the bytes are HEIC, which this server was installed without (its extra [heif]); send {SUPPORTED}"
        )
    if format == "PNG":
        image = _read(format, png.pixel_chunks(data))
        if isinstance(key := image.info.get("transparency"), (int, tuple)):
            image.info["transparency"] = png.visible_key(key, png.header(data))
        return image
    image = _read(format, bytes(data))
    if format == "BMP":
        _check_runs(image, len(data))
    return image


def _check_runs(image: ImageFile.ImageFile, num_bytes: int) -> None:
    is_run_length = any(tile.codec_name == "bmp_rle" for tile in image.tile)
    if is_run_length and (image.width * image.height > MAX_RLE_PIXELS or num_bytes > MAX_RLE_BYTES):
        raise TooLarge(
            f"a run-length encoded BMP image may have {MAX_RLE_PIXELS} pixels and {MAX_RLE_BYTES} bytes; "
            "save it without compression, or as PNG"
        )


def stored_orientation(image: Image.Image) -> int:
    """The orientation, 1 to 8, that the metadata names; 1 where they name none or cannot be read."""
    return _orientation(lambda: image)


def png_orientation(chunks: bytes | None) -> int:
    """The same for the chunks that `png.survey` found."""
    return _orientation(lambda: PngImagePlugin.PngImageFile(io.BytesIO(chunks))) if chunks else 1


def _orientation(opened: Callable[[], Image.Image]) -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            # not the image's own getexif: the one of a PNG would decode the pixels first
            value = Image.Image.getexif(opened()).get(ExifTags.Base.Orientation, 1)
        except Exception as error:
            logger.debug("metadata are unreadable: %s", type(error).__name__)
            return 1
    return value if isinstance(value, int) and 1 <= value <= 8 else 1


def _read(format: Format, encoded: bytes) -> ImageFile.ImageFile:
    with library_call(format):
        return _READERS[format](io.BytesIO(encoded))


def _open_avif(encoded: bytes) -> ImageFile.ImageFile:
    if not AvifImagePlugin.SUPPORTED:
        refuse_format("AVIF")
    try:
        return _read("AVIF", encoded)
    except Undecodable:
        # its decoder refuses the whole file for a bad EXIF block, which turns nothing: have it skip that block
        without_exif = _AVIF_EXIF_ITEM.sub(rb"\1skip", encoded)
        if without_exif == encoded:
            raise
        return _read("AVIF", without_exif)


def webp_canvas(data: memoryview) -> tuple[int, int]:
    """Width and height of a WebP, read here because its decoder makes its buffers when it is opened."""
    head = bytes(data[:30])
    if len(head) == 30 and head[12:16] == b"VP8X":
        return int.from_bytes(head[24:27], "little") + 1, int.from_bytes(head[27:30], "little") + 1
    if len(head) == 30 and head[12:16] == b"VP8L" and head[20] == 0x2F:
        bits = int.from_bytes(head[21:25], "little")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if len(head) == 30 and head[12:16] == b"VP8 " and head[23:26] == b"\x9d\x01\x2a":
        return int.from_bytes(head[26:28], "little") & 0x3FFF, int.from_bytes(head[28:30], "little") & 0x3FFF
    raise Undecodable("the WEBP image is truncated or damaged")
