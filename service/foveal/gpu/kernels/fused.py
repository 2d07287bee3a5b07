"""`FusedOps`: the operations of a tower in Triton, all of them fit for a CUDA graph."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from foveal.families.tower_plan import Activation
from foveal.gpu.inputs import Inputs
from foveal.gpu.kernels.activation import activate
from foveal.gpu.kernels.attention import attend_tiles, tile_table
from foveal.gpu.kernels.embed import centred, embed_positions
from foveal.gpu.kernels.norm import add_norm, row_absmax
from foveal.gpu.kernels.pool import mean_rows, pool_attention
from foveal.gpu.kernels.rope import rotate_in_place
from foveal.gpu.kernels.tuning import tile_for
from foveal.gpu.kernels.windows import attend_windows
from foveal.gpu.ops import Attend, Embedded, PositionTables


class FusedOps:
    """See `Ops`."""

    name = "triton-tiles"
    is_capturable = True

    def pixels(self, rows: torch.Tensor, centre: float, dtype: torch.dtype) -> torch.Tensor:
        """One kernel."""
        return centred(rows, centre, dtype)

    def embed_positions(self, inputs: Inputs, patches: torch.Tensor, tables: PositionTables) -> Embedded:
        """One kernel; an antialiased table takes one more, and a matrix product."""
        return embed_positions(inputs, patches, tables)

    def attention(self, cu_seqlens: torch.Tensor, embedded: Embedded) -> Attend:
        """One kernel over a table of tiles that is made once for all blocks; one more turns queries and keys."""
        num_rows, cos, sin = embedded.x.shape[0], embedded.cos, embedded.sin
        tables: dict[int, torch.Tensor] = {}

        def attend(qkv: torch.Tensor) -> torch.Tensor:
            tile = tile_for(num_rows, qkv.shape[-1], qkv.dtype)
            if tile.rows not in tables:
                tables[tile.rows] = tile_table(cu_seqlens, num_rows, tile.rows)
            if cos is not None and sin is not None:
                rotate_in_place(qkv, cos, sin)
            return attend_tiles(qkv, tables[tile.rows], tile)

        return attend

    def window_attention(self, embedded: Embedded) -> Attend:
        """One kernel for all windows; one more turns queries and keys."""
        windows, cos, sin = embedded.windows, embedded.cos, embedded.sin
        assert windows is not None

        def attend(qkv: torch.Tensor) -> torch.Tensor:
            if cos is not None and sin is not None:
                rotate_in_place(qkv, cos, sin)
            return attend_windows(qkv, windows)

        return attend

    def add_norm(self, x: torch.Tensor, y: torch.Tensor | None, norm: nn.LayerNorm | nn.RMSNorm) -> torch.Tensor:
        """One kernel."""
        return add_norm(x, y, norm)

    def activated(self, x: torch.Tensor, linear: nn.Linear, activation: Activation, gated: bool) -> torch.Tensor:
        """One kernel behind the matrix; none for the tanh form of GELU, which cuBLASLt applies as it writes."""
        if activation == "gelu_tanh" and not gated and linear.bias is not None:
            return torch._addmm_activation(linear.bias, x, linear.weight.t(), use_gelu=True)
        return activate(F.linear(x, linear.weight, linear.bias), activation, gated)

    def mean_rows(self, rows: torch.Tensor, cu_seqlens: torch.Tensor, merge_area: int, out: torch.Tensor) -> None:
        """One kernel."""
        mean_rows(rows, cu_seqlens, merge_area, out)

    def pool_attention(self, query: torch.Tensor, kv: torch.Tensor, cu_seqlens: torch.Tensor) -> torch.Tensor:
        """One kernel."""
        return pool_attention(query, kv, cu_seqlens)

    def row_absmax(self, rows: torch.Tensor, out: torch.Tensor) -> None:
        """One kernel."""
        row_absmax(rows, out)
