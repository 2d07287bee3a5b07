"""The resize rule of the Qwen-VL processors.

Follows `smart_resize` of transformers' Qwen2VLImageProcessor (5.17 to 5.24): sides are multiples of
patch_size x merge_size, the area lies within bounds, the shape is kept as well as that allows, and a ratio
above 200 is refused. Python's round (half to even) is part of the rule.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from foveal.errors import AspectRatio
from foveal.types import Interpolation, PixelPlan

MAX_RATIO = 200


@dataclass(frozen=True)
class SmartResize:
    """Areas are in pixels of the resized picture."""

    patch_size: int
    merge_size: int
    min_pixels: int
    max_pixels: int
    interpolation: Interpolation = "bicubic"

    fixed_size = None

    @property
    def factor(self) -> int:
        """Side of a token in pixels."""
        return self.patch_size * self.merge_size

    def pixels_for_tokens(self, tokens: int) -> int:
        """The largest area that gives at most this many tokens."""
        return tokens * self.factor**2

    def plan(self, width: int, height: int, min_pixels: int | None = None, max_pixels: int | None = None) -> PixelPlan:
        """The resized size; a bound that the caller names wins over the checkpoint's other bound.

        Raises AspectRatio above 200 to 1.
        """
        most = max_pixels or self.max_pixels
        least = min_pixels if min_pixels is not None else min(self.min_pixels, most)
        most = max(most, least)
        if max(width, height) > MAX_RATIO * min(width, height):
            raise AspectRatio(
                f"the picture is {width} x {height}: this model takes ratios up to {MAX_RATIO} to 1; "
                "crop it or cut it into pieces"
            )
        new_height, new_width = self._sides(height, width, least, most)
        return PixelPlan(new_height, new_width, self.patch_size, self.merge_size, self.interpolation)

    def _sides(self, height: int, width: int, least: int, most: int) -> tuple[int, int]:
        f = self.factor
        rounded = round(height / f) * f, round(width / f) * f
        if rounded[0] * rounded[1] > most:
            shrink = math.sqrt(height * width / most)
            return max(f, math.floor(height / shrink / f) * f), max(f, math.floor(width / shrink / f) * f)
        if rounded[0] * rounded[1] < least:
            grow = math.sqrt(least / (height * width))
            return math.ceil(height * grow / f) * f, math.ceil(width * grow / f) * f
        return rounded
