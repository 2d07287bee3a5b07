"""`FusedOps`: the operations of a tower in Triton, all of them fit for a CUDA graph."""

from __future__ import annotations

import torch
from torch import nn

from foveal.gpu.inputs import Inputs
from foveal.gpu.kernels.attention import attend_tiles, tile_table
from foveal.gpu.kernels.embed import centred, placed
from foveal.gpu.kernels.norm import add_norm, row_peaks
from foveal.gpu.kernels.rope import rotate_in_place
from foveal.gpu.kernels.tuning import tile_for
from foveal.gpu.ops import Attend, Placed, Positions


class FusedOps:
    """See `Ops`."""

    name = "triton-tiles"
    is_capturable = True

    def pixels(self, rows: torch.Tensor, centre: float, dtype: torch.dtype) -> torch.Tensor:
        """One kernel."""
        return centred(rows, centre, dtype)

    def placed(self, inputs: Inputs, merge_size: int, patches: torch.Tensor, positions: Positions) -> Placed:
        """One kernel."""
        return Placed(*placed(inputs, merge_size, patches, *positions))

    def attention(self, cu_seqlens: torch.Tensor, num_patches: int) -> Attend:
        """One kernel for all items, over a table of tiles that is made once for all blocks."""

        def attend(qkv: torch.Tensor) -> torch.Tensor:
            tile = tile_for(num_patches, qkv.shape[-1], qkv.dtype)
            if tile.rows not in tables:
                tables[tile.rows] = tile_table(cu_seqlens, num_patches, tile.rows)
            return attend_tiles(qkv, tables[tile.rows], tile)

        tables: dict[int, torch.Tensor] = {}
        return attend

    def rotate(self, qkv: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
        """One kernel."""
        rotate_in_place(qkv, cos, sin)

    def add_norm(self, x: torch.Tensor, y: torch.Tensor | None, norm: nn.LayerNorm) -> torch.Tensor:
        """One kernel."""
        return add_norm(x, y, norm.weight, norm.bias, norm.eps)

    def linear_gelu(self, x: torch.Tensor, linear: nn.Linear) -> torch.Tensor:
        """One kernel: cuBLASLt adds the bias and applies GELU as it writes."""
        return torch._addmm_activation(linear.bias, x, linear.weight.t(), use_gelu=True)

    def peaks(self, rows: torch.Tensor, out: torch.Tensor) -> None:
        """One kernel."""
        row_peaks(rows, out)
