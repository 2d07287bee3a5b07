"""What callers call an image → bytes to send, or a URL for the server to fetch. Knows nothing of HTTP."""

from __future__ import annotations

import base64
import binascii
import io
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, TypeVar, Union
from urllib.parse import unquote_to_bytes

import numpy as np
import numpy.typing as npt

from foveal_client._files import read_file
from foveal_client._png import png_of

if TYPE_CHECKING:
    from PIL import Image

ImageInput: TypeAlias = Union[str, os.PathLike[str], bytes, bytearray, memoryview, npt.NDArray[np.uint8], "Image.Image"]
"""An encoded file's bytes or path, an http(s) URL, a data-URI, uint8 pixels, or a Pillow image."""
ImageT = TypeVar("ImageT", bound=ImageInput)

_PNG_MODES = frozenset({"1", "L", "LA", "P", "RGB", "RGBA", "I;16"})
_CONVERTED_MODES = frozenset({"CMYK", "YCbCr", "LAB", "HSV", "PA", "RGBa", "RGBX"})
_SHOWN_CHARACTERS = 40


@dataclass(frozen=True)
class Url:
    """An address that the server fetches by itself."""

    address: str


Source: TypeAlias = bytes | Url
"""An image ready to be sent."""


def read_image(image: ImageInput, check: Callable[[], object] | None = None) -> Source:
    """One image ready to be sent. `check` is called now and then while a file is read, and may raise.

    Raises OSError for a file that cannot be read, ValueError for an array or a data-URI that is no image,
    TypeError for anything else. May read a file or compress pixels: asynchronous callers run it in a thread.
    """
    match image:
        case str():
            return _from_text(image, check)
        case bytes():
            return image
        case bytearray() | memoryview():
            return bytes(image)
        case np.ndarray():
            return png_of(image)
        case os.PathLike():
            return read_file(image, check)
    if _is_pillow_image(image):
        return _from_pillow(image)
    raise TypeError(f"an image is a path, bytes, URL, data-URI, uint8 array or Pillow image, not {_kind(image)}")


def read_images(images: Sequence[ImageInput], check: Callable[[], object] | None = None) -> list[Source]:
    """All images ready to be sent, in order. Raises as `read_image`, naming which one; ValueError for none."""
    if not images:
        raise ValueError("there is no image to encode")
    if len(images) == 1:
        return [read_image(images[0], check)]
    sources = []
    for place, image in enumerate(images):
        if check is not None:
            check()
        try:
            sources.append(read_image(image, check))
        except (TypeError, ValueError, OSError) as error:
            error.add_note(f"in images[{place}]")
            raise
    return sources


def is_ready_to_send(image: object) -> bool:
    """True for what `read_image` returns at once, without touching a file or a pixel."""
    return isinstance(image, bytes) or (isinstance(image, str) and _is_url(image))


def _from_text(text: str, check: Callable[[], object] | None) -> Source:
    if _is_url(text):
        return Url(text)
    if text[:5].lower() == "data:":
        return _from_data_uri(text)
    return read_file(text, check)


def _is_url(text: str) -> bool:
    return text[:8].lower().startswith(("http://", "https://"))


def _from_data_uri(uri: str) -> bytes:
    """The bytes inside: base64 if it says so, else percent-encoded. Raises ValueError for neither."""
    head, comma, payload = uri[5:].partition(",")
    if not comma:
        raise ValueError(f"a data-URI needs a comma before its data: {uri[:_SHOWN_CHARACTERS]!r}")
    if not head.lower().replace(" ", "").endswith(";base64"):
        return unquote_to_bytes(payload)
    try:
        return base64.b64decode(payload, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"a data-URI holds base64 that is not: {error}") from error


def _is_pillow_image(image: object) -> bool:
    """Without importing Pillow: whoever made such an image has imported it."""
    module = sys.modules.get("PIL.Image")
    return module is not None and isinstance(image, module.Image)


def _from_pillow(image: Image.Image) -> bytes:
    """PNG of the pixels as they are in memory.

    An EXIF orientation that was not applied stays unapplied (use `ImageOps.exif_transpose` first, or send the file).
    """
    if image.mode in _CONVERTED_MODES:
        image = image.convert("RGBA" if image.mode in ("PA", "RGBa") else "RGB")
    elif image.mode not in _PNG_MODES:
        raise ValueError(f"a Pillow image of mode {image.mode!r} has no 8-bit pixels: convert it to 'RGB' first")
    buffer = io.BytesIO()
    # A profile or an orientation would only be in the server's way: what counts is the pixels, as they are.
    image.save(buffer, "PNG", compress_level=1, icc_profile=None, exif=None)
    return buffer.getvalue()


def _kind(image: object) -> str:
    return f"a {type(image).__module__}.{type(image).__qualname__}".replace("builtins.", "")
