"""Pictures that several tests of the prep process draw."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from PIL import Image

Encode = Callable[..., bytes]


@pytest.fixture(scope="session")
def drawing() -> Image.Image:
    """48 x 32, no two parts alike: any turn, shift or crop of it is another picture."""
    y, x = np.mgrid[0:32, 0:48]
    pixels = np.stack([x * 5, y * 7, (x * 3 + y * 2) % 256], axis=2).astype(np.uint8)
    pixels[:16, :24] //= 2
    return Image.fromarray(pixels)


@pytest.fixture(scope="session")
def encode() -> Encode:
    """The bytes of a picture in a format."""

    def to_bytes(image: Image.Image, format: str, **options: Any) -> bytes:
        stream = io.BytesIO()
        image.save(stream, format, **options)
        return stream.getvalue()

    return to_bytes
