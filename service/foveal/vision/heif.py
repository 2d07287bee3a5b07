"""HEIC, where the extra `[heif]` is installed: the primary picture, turned as the container says.

The library behind turns and crops while it decodes and reports the upright size; an orientation in the EXIF block is
a copy for others, not to be applied again.
"""

from __future__ import annotations

import io
from typing import Any

from PIL import ImageFile


def _library() -> Any:
    """The library, or None without the extra."""
    try:
        import pillow_heif
    except ImportError:
        return None
    # thumbnails, depth maps and other pictures of the file are nobody's concern, and one process is one core
    options = pillow_heif.options
    options.THUMBNAILS = options.DEPTH_IMAGES = options.AUX_IMAGES = False
    options.DECODE_THREADS = 1
    return pillow_heif


_HEIF = _library()


def is_installed() -> bool:
    """True where HEIC can be read."""
    return _HEIF is not None


def reader(encoded: io.BytesIO) -> ImageFile.ImageFile:
    """The picture with its header read. Only where it `is_installed`; raises whatever the library does."""
    image: ImageFile.ImageFile = _HEIF.HeifImageFile(encoded)
    return image
