"""The resize rule of SigLIP 2 NaFlex.

Follows `get_image_size_for_max_num_patches` of transformers' Siglip2ImageProcessor (5.17 to 5.24), search included:
the largest scale at which both sides, rounded up to whole patches, give no more than so many patches.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from foveal.types import Interpolation, PixelPlan

EPSILON = 1e-5
"""Where the search for the scale ends."""
MAX_SCALE = 100.0


@dataclass(frozen=True)
class NaFlex:
    """Up to `max_patches` patches of a picture in its own shape; small pictures are enlarged to as many."""

    patch_size: int
    max_patches: int
    interpolation: Interpolation

    min_pixels = None
    fixed_size = None

    @property
    def max_pixels(self) -> int:
        """The area of as many patches."""
        return self.pixels_for_tokens(self.max_patches)

    def pixels_for_tokens(self, tokens: int) -> int:
        """The largest area that gives at most this many tokens."""
        return tokens * self.patch_size**2

    def plan(self, width: int, height: int, min_pixels: int | None = None, max_pixels: int | None = None) -> PixelPlan:
        """The resized size; `max_pixels` stands for as many whole patches as have that area, at least one.

        A least area has no meaning here, since every picture gets as close to the most as it can; a request with
        one is refused earlier.
        """
        most = self.max_patches if max_pixels is None else max(1, max_pixels // self.patch_size**2)
        low, high = EPSILON / 10, MAX_SCALE
        while high - low >= EPSILON:
            scale = (low + high) / 2
            if self._patches(height, scale) * self._patches(width, scale) <= most:
                low = scale
            else:
                high = scale
        new_height, new_width = (self._patches(side, low) * self.patch_size for side in (height, width))
        return PixelPlan(new_height, new_width, self.patch_size, 1, self.interpolation)

    def _patches(self, side: int, scale: float) -> int:
        return max(1, math.ceil(side * scale / self.patch_size))
