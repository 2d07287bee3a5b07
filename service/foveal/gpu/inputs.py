"""What a forward reads: views of the static buffers."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Inputs:
    """Rows from the last of `cu_seqlens` on are padding: any bytes, no image."""

    rows: torch.Tensor
    """uint8 [patches, row_bytes]: patches of the items one after the other, merge blocks in order."""
    cu_seqlens: torch.Tensor
    """int32 [items + 1]: cumulative patches; unused places repeat the last."""
    grids: torch.Tensor
    """int32 [items, 2]: height and width in patches; unused places may hold anything."""
