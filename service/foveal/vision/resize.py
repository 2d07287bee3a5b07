"""The reference processors' resize, bit for bit."""

from __future__ import annotations

import warnings

import numpy as np
import numpy.typing as npt
import torch

from foveal.types import PixelPlan

Pixels = npt.NDArray[np.uint8]


def resize(pixels: Pixels, plan: PixelPlan) -> Pixels:
    """Pixels [H, W, 3] as uint8 [plan.height, plan.width, 3], possibly a view of separate colour planes.

    Antialiased interpolation of torch on bytes, which is what the default (torchvision) processors run. Read as
    channels-last, the pixels are not copied before; the result has the same bits as from separate planes and took
    1.4 instead of 4.8 ms for 1280 x 720 to 1280 x 704. A picture that has the size already is returned as it is.
    """
    if pixels.shape[:2] == (plan.height, plan.width):
        return pixels
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of read-only arrays; nothing writes to this one
        # the axis is added before torch sees the array: only then are the strides those of channels-last
        stored = torch.from_numpy(pixels[np.newaxis]).permute(0, 3, 1, 2)
    resized = torch.nn.functional.interpolate(
        stored, (plan.height, plan.width), mode=plan.interpolation, antialias=True, align_corners=False
    )
    return resized[0].permute(1, 2, 0).numpy()
