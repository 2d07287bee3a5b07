"""HEIC, where the extra `[heif]` is installed: the primary picture, turned as the container says.

The library behind turns and crops while it decodes and reports the upright size; an orientation in the EXIF block is
a copy for others, not to be applied again.
"""

from __future__ import annotations

import io

from PIL import ImageFile

try:
    import pillow_heif
except ImportError:  # the extra [heif] is not installed
    pillow_heif = None
else:
    # thumbnails, depth maps and other pictures of the file are nobody's concern, and one process is one core
    pillow_heif.options.THUMBNAILS = pillow_heif.options.DEPTH_IMAGES = pillow_heif.options.AUX_IMAGES = False
    pillow_heif.options.DECODE_THREADS = 1


def is_installed() -> bool:
    """True where HEIC can be read."""
    return pillow_heif is not None


def reader(encoded: io.BytesIO) -> ImageFile.ImageFile:
    """The picture with its header read. Only where it `is_installed`; raises whatever the library does."""
    image: ImageFile.ImageFile = pillow_heif.HeifImageFile(encoded)
    return image
