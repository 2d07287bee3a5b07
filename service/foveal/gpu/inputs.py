"""What a forward reads and writes: views of the static buffers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Inputs:
    """Rows from the last of `cu_seqlens` on are padding: any bytes, no image. So are the prefix rows of each item."""

    rows: torch.Tensor
    """uint8 [rows, row_bytes]: the items one after the other, each its prefix rows, then its patches, merge blocks in
    order."""
    cu_seqlens: torch.Tensor
    """int32 [items + 1]: cumulative rows; unused places repeat the last."""
    grids: torch.Tensor
    """int32 [items, 2]: height and width in patches; unused places may hold anything."""


@dataclass(frozen=True)
class Outputs:
    """What a forward writes. Unused rows and items are finite, and mean nothing."""

    tokens: torch.Tensor
    """[rows / merge_area, width] in the compute dtype."""
    pooled: torch.Tensor
    """float32 [items, pooled_width], not normalised."""
    early_done: Callable[[], None]
    """The tower calls it once, when the early columns of `tokens` are written for good, if it has such."""
