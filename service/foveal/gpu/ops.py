"""The operations of a tower that a GPU wants fused: positions, attention, residual and norm, activations, pooling.

`foveal.gpu.plain_ops` is PyTorch, for the CPU; `foveal.gpu.kernels.fused.FusedOps` has the same methods in Triton.
The tower is written once, against this interface.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import nn

from foveal.families.tower_plan import Activation
from foveal.gpu.inputs import Inputs

Attend = Callable[[torch.Tensor], torch.Tensor]
"""qkv [rows, 3, heads, head_dim], not yet rotated, to the attention output [rows, heads, head_dim]. May change qkv."""


@dataclass(frozen=True)
class PositionTables:
    """What a tower knows of positions: float32 on its device, and the order of rows."""

    merge_size: int
    prefix_rows: int = 0
    window: int = 0
    """Side of a window in tokens; 0: rows keep their order. Else those of a window follow each other."""
    bias: torch.Tensor | None = None
    """[hidden]: of the patch embedding; None where `fixed` has it."""
    fixed: torch.Tensor | None = None
    """[rows of an item, hidden]: added by a row's number in its item. Prefix rows are this alone."""
    interpolated: torch.Tensor | None = None
    """[side², hidden]: interpolated over each picture, corners coincide (align_corners)."""
    antialiased: torch.Tensor | None = None
    """[side², hidden]: resized to each picture, bilinear and antialiased."""
    frequencies: torch.Tensor | None = None
    """[head_dim / 4]: of the rotation."""


class Embedded(NamedTuple):
    """What the blocks take. With windows, rows are in window order."""

    x: torch.Tensor
    """[rows, hidden] in the compute dtype."""
    cos: torch.Tensor | None
    """float32 [rows, head_dim / 2], with rotation only."""
    sin: torch.Tensor | None
    """The same."""
    windows: torch.Tensor | None
    """int32 [rows, 2]: first row and the one after the last of a row's window; equal for padding. With windows only."""
    order: torch.Tensor | None
    """int32 [tokens]: where each token of the answer is in window order. With windows only."""


class Ops(Protocol):
    """One implementation, chosen at start for a device."""

    name: str
    """For /info."""
    is_capturable: bool
    """False if something is read on the host, which no graph can record."""

    def pixels(self, rows: torch.Tensor, centre: float, dtype: torch.dtype) -> torch.Tensor:
        """(rows - centre) / centre of uint8 [rows, row_bytes]."""

    def embed_positions(self, inputs: Inputs, patches: torch.Tensor, tables: PositionTables) -> Embedded:
        """Add what belongs to each place to patch embeddings [rows, hidden], which come in the inputs' order."""

    def attention(self, cu_seqlens: torch.Tensor, embedded: Embedded) -> Attend:
        """Attention within the segments of `cu_seqlens`; rows behind the last segment get zeros.

        Made once for a forward, called by every block. Left unwritten, stale NaN of padding rows would spread into
        the tiles of real rows.
        """

    def window_attention(self, embedded: Embedded) -> Attend:
        """The same within windows."""

    def add_norm(self, x: torch.Tensor, y: torch.Tensor | None, norm: nn.LayerNorm | nn.RMSNorm) -> torch.Tensor:
        """Norm of x + y; x [rows, width] keeps the sum, in place."""

    def activated(self, x: torch.Tensor, linear: nn.Linear, activation: Activation, gated: bool) -> torch.Tensor:
        """The activation of a linear layer; gated: of its first half, times its second half."""

    def mean_rows(self, rows: torch.Tensor, cu_seqlens: torch.Tensor, merge_area: int, out: torch.Tensor) -> None:
        """Mean of each item's rows of [tokens, width] (width <= its stride) into float32 out [items, width].

        Items are told by `cu_seqlens`, which counts patches, `merge_area` of them for a row. Zeros for unused items.
        """

    def pool_attention(self, query: torch.Tensor, kv: torch.Tensor, cu_seqlens: torch.Tensor) -> torch.Tensor:
        """One query [heads, head_dim] over each item's rows of kv [rows, 2, heads, head_dim], scaled as usual.

        Returns [items, heads, head_dim]; zeros for unused items.
        """

    def row_absmax(self, rows: torch.Tensor, out: torch.Tensor) -> None:
        """Largest magnitude of each row, float32 [rows]; NaN and infinity come through."""


def choose_ops(device: torch.device) -> Ops:
    """Fused where Triton compiles, plain elsewhere."""
    if device.type != "cuda":
        from foveal.gpu.plain_ops import PlainOps

        return PlainOps()
    from foveal.gpu.kernels.fused import FusedOps

    return FusedOps()
