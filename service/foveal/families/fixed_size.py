"""The resize rules of towers that take one size of picture.

They follow `resize` and `center_crop` of transformers' torchvision-backed processors (5.17 to 5.24), which CLIP, BiT
(DINOv2), SigLIP and ViT share. The Pillow-backed ones compute the same sizes, but other bits; and where a picture is
smaller than the cut by an odd number, they leave the odd black line on the left and above.
"""

from __future__ import annotations

from dataclasses import dataclass

from foveal.errors import AspectRatio
from foveal.families.smart_resize import MAX_RATIO
from foveal.types import Interpolation, PixelPlan


@dataclass(frozen=True)
class _OneSize:
    """What every picture becomes: height x width pixels, of which whole patches are taken."""

    height: int
    width: int
    patch_size: int
    interpolation: Interpolation
    prefix_rows: int

    min_pixels = None
    max_pixels = None

    @property
    def fixed_size(self) -> tuple[int, int]:
        """Height and width of every picture."""
        return self.height, self.width

    def pixels_for_tokens(self, tokens: int) -> int:
        """The one area there is."""
        return self.height * self.width

    def _plan(self, resized: tuple[int, int] | None) -> PixelPlan:
        return PixelPlan(
            height=self.height,
            width=self.width,
            patch_size=self.patch_size,
            merge_size=1,
            interpolation=self.interpolation,
            resized=resized,
            prefix_rows=self.prefix_rows,
        )


@dataclass(frozen=True)
class FixedSize(_OneSize):
    """Straight to one size, whatever the shape; then, if `resized` says so, the middle is cut out."""

    resized: tuple[int, int] | None = None
    """Height and width before the cut."""

    def plan(self, width: int, height: int, min_pixels: int | None = None, max_pixels: int | None = None) -> PixelPlan:
        """The same for every picture; limits have no meaning here, and requests with some are refused earlier."""
        return self._plan(self.resized)


@dataclass(frozen=True)
class ShortestEdgeCrop(_OneSize):
    """The shorter side to `shortest_edge` pixels, the longer one in proportion; then the middle is cut out."""

    shortest_edge: int

    def plan(self, width: int, height: int, min_pixels: int | None = None, max_pixels: int | None = None) -> PixelPlan:
        """The size before the cut follows the shape; limits are refused earlier.

        Raises AspectRatio above 200 to 1: the longer side would be resized to a strip of any length, of which the
        cut throws nearly all away.
        """
        short, long = sorted((width, height))
        if long > MAX_RATIO * short:
            raise AspectRatio(
                f"the picture is {width} x {height}: this model takes ratios up to {MAX_RATIO} to 1; "
                "crop it or cut it into pieces"
            )
        # the quotient is of floats and the fraction is cut off, as in transformers
        longer = int(self.shortest_edge * long / short)
        return self._plan((longer, self.shortest_edge) if width <= height else (self.shortest_edge, longer))


FixedRule = FixedSize | ShortestEdgeCrop
