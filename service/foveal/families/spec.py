"""`ModelSpec`: everything that the api must know of the served model before a worker has loaded it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from foveal.families.tower_plan import TowerPlan
from foveal.types import DTYPE_BYTES, DType, Level, Output, OutputKind, PixelPlan


class ResizeRule(Protocol):
    """From the size of an upright picture to what its pixels become. All numbers are pixels."""

    @property
    def min_pixels(self) -> int | None:
        """Smaller pictures are enlarged to this area; None: a request cannot name one."""

    @property
    def max_pixels(self) -> int | None:
        """Larger pictures are shrunk to this area; None: a request cannot name one."""

    @property
    def fixed_size(self) -> tuple[int, int] | None:
        """Height and width of every picture, for a tower that takes one size."""

    def plan(self, width: int, height: int, min_pixels: int | None = None, max_pixels: int | None = None) -> PixelPlan:
        """The resized size and grid; raises AspectRatio where the reference processor refuses the shape."""

    def pixels_for_tokens(self, tokens: int) -> int:
        """The largest area that gives at most this many tokens."""


@dataclass(frozen=True)
class ModelSpec:
    """One served model."""

    name: str
    family: str
    architecture: str
    folder: Path
    revision: str
    dummy_weights: bool
    dtype: DType
    """The checkpoint's own dtype, and so the default dtype of an answer."""
    rule: ResizeRule
    tower: TowerPlan
    width: int
    """Columns of a token row, all levels together."""
    pooled_width: int
    levels: tuple[Level, ...]
    outputs: tuple[OutputKind, ...]
    default_output: OutputKind
    row_meaning: dict[OutputKind, str]
    image_mean: tuple[float, float, float]
    image_std: tuple[float, float, float]

    @property
    def fixed_tokens(self) -> int | None:
        """Tokens of every picture, for a tower that takes one size."""
        if self.tower.fixed_grid is None:
            return None
        height, width = self.tower.fixed_grid
        return self.tower.prefix_rows + height * width // self.tower.merge_size**2

    def compute_dtype(self, asked: Literal["auto"] | DType, device: str) -> DType:
        """What a worker computes in: what was asked for, or the checkpoint's own on a GPU and float32 on a CPU."""
        if asked != "auto":
            return asked
        return "float32" if device == "cpu" else self.dtype

    def embedding_bytes(self, output: Output, num_tokens: int) -> int:
        """Bytes of one image's answer."""
        values = self.pooled_width if output.kind == "pooled" else num_tokens * self.width
        return values * DTYPE_BYTES[output.dtype]

    def shape(self, output: Output, num_tokens: int) -> tuple[int, ...]:
        """Shape of one image's answer: [tokens, width] or [width]."""
        return (self.pooled_width,) if output.kind == "pooled" else (num_tokens, self.width)
