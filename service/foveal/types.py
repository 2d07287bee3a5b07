"""Frozen data that crosses folders. Imports nothing heavy and knows no process."""

from __future__ import annotations

from typing import Literal, NamedTuple

import msgspec

OutputKind = Literal["tokens", "pooled"]
DType = Literal["bfloat16", "float16", "float32"]
DTYPE_BYTES: dict[DType, int] = {"bfloat16": 2, "float16": 2, "float32": 4}


class GridTHW(NamedTuple):
    """Temporal groups, height and width of an image, in patches."""

    t: int
    h: int
    w: int

    @property
    def num_patches(self) -> int:
        """Input rows of the image."""
        return self.t * self.h * self.w


Interpolation = Literal["bicubic", "bilinear"]


class PixelPlan(msgspec.Struct, frozen=True):
    """What happens to the upright picture before patches are cut, in pixels: resized, then cut to height x width."""

    height: int
    width: int
    patch_size: int
    merge_size: int
    interpolation: Interpolation = "bicubic"
    resized: tuple[int, int] | None = None
    """Height and width before the middle is cut out; None where nothing is cut away."""
    prefix_rows: int = 0
    """Rows of the answer that stand for no patch: class and register tokens, before the patches."""

    @property
    def grid(self) -> GridTHW:
        """The grid of the resized picture; a still image has one temporal group."""
        return GridTHW(1, self.height // self.patch_size, self.width // self.patch_size)

    @property
    def num_patches(self) -> int:
        """Input rows of the image."""
        return self.grid.num_patches

    @property
    def num_tokens(self) -> int:
        """Output rows of the image: the prefix, and patches / merge_size²."""
        return self.prefix_rows + self.num_patches // self.merge_size**2

    @property
    def row_bytes(self) -> int:
        """Bytes of one uint8 patch row, laid out (channel, y, x); a still image sends one frame, not two."""
        return 3 * self.patch_size**2


class Output(msgspec.Struct, frozen=True):
    """What a caller wants of an image: rows for the LLM or one pooled row, in which dtype."""

    kind: OutputKind
    dtype: DType
    normalize: bool = False


class TokenBudget(msgspec.Struct, frozen=True):
    """One step of the ladder: what it holds and what it costs. Measured by the worker at start."""

    tokens: int
    """Output rows that the static buffers hold."""
    items: int
    """Images that one pack of this budget may have."""
    milliseconds: float = 0.0
    """Measured time of one run at this budget; 0 before it was measured."""
    bytes: int = 0
    """Device memory that this step adds beside the shared buffers (0 on the CPU)."""
    is_captured: bool = False
    """True when a graph replays it; else the forward is called directly on the same buffers."""


class Level(msgspec.Struct, frozen=True):
    """One part of an output row: columns start..stop."""

    name: str
    start: int
    stop: int
