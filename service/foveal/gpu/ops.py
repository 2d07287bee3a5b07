"""The operations of a tower that a GPU wants fused: attention within items, rotation, residual and norm, GELU.

`PlainOps` is PyTorch, for the CPU; `foveal.gpu.kernels.fused.FusedOps` has the same methods in Triton. A tower is
written once, against this interface.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import nn

from foveal.gpu.inputs import Inputs
from foveal.gpu.positions import interpolated, locate, rope_angles

Attend = Callable[[torch.Tensor], torch.Tensor]
"""Rotated qkv [patches, 3, heads, head_dim] to the mixture [patches, heads, head_dim]."""


class Positions(NamedTuple):
    """What a tower knows of places, float32 on its device."""

    bias: torch.Tensor
    """[hidden]: of the patch embedding."""
    table: torch.Tensor
    """[side², hidden]: learned position embedding, stretched over each picture."""
    frequencies: torch.Tensor
    """[head_dim / 4]: of the rotation."""


class Placed(NamedTuple):
    """What the first block takes."""

    x: torch.Tensor
    """[patches, hidden] in the compute dtype."""
    cos: torch.Tensor
    """float32 [patches, head_dim / 2]."""
    sin: torch.Tensor
    """float32 [patches, head_dim / 2]."""


class Ops(Protocol):
    """One implementation, chosen at start for a device."""

    name: str
    """For /info."""
    is_capturable: bool
    """False if something is read on the host, which no graph can record."""

    def pixels(self, rows: torch.Tensor, centre: float, dtype: torch.dtype) -> torch.Tensor:
        """(rows - centre) / centre of uint8 [patches, row_bytes]."""

    def placed(self, inputs: Inputs, merge_size: int, patches: torch.Tensor, positions: Positions) -> Placed:
        """Add bias and interpolated position embedding to patch embeddings [patches, hidden]; make the rope angles."""

    def attention(self, cu_seqlens: torch.Tensor, num_patches: int) -> Attend:
        """Attention within the segments of `cu_seqlens`; rows behind the last segment get zeros.

        Made once for a forward, called by every block. Left unwritten, stale NaN of padding rows would spread into
        the tiles of real rows.
        """

    def rotate(self, qkv: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
        """Turn queries and keys of qkv [patches, 3, heads, head_dim] in place; angles [patches, head_dim / 2]."""

    def add_norm(self, x: torch.Tensor, y: torch.Tensor | None, norm: nn.LayerNorm) -> torch.Tensor:
        """Layer norm of x + y; x [rows, width] keeps the sum, in place."""

    def linear_gelu(self, x: torch.Tensor, linear: nn.Linear) -> torch.Tensor:
        """GELU (tanh form) of a linear layer."""

    def peaks(self, rows: torch.Tensor, out: torch.Tensor) -> None:
        """Largest magnitude of each row, float32 [rows]; NaN and infinity come through."""


class PlainOps:
    """PyTorch's own operations, with segment lengths read on the host."""

    name = "sdpa-loop"
    is_capturable = False

    def pixels(self, rows: torch.Tensor, centre: float, dtype: torch.dtype) -> torch.Tensor:
        """Three operations."""
        return (rows.to(dtype) - centre) / centre

    def placed(self, inputs: Inputs, merge_size: int, patches: torch.Tensor, positions: Positions) -> Placed:
        """Sums in float32."""
        places = locate(inputs, merge_size)
        x = patches.float() + positions.bias + interpolated(positions.table, places)
        return Placed(x.to(patches.dtype), *rope_angles(places, positions.frequencies))

    def attention(self, cu_seqlens: torch.Tensor, num_patches: int) -> Attend:
        """One scaled_dot_product_attention for each item."""
        bounds: list[int] = cu_seqlens.tolist()
        segments = [(start, stop) for start, stop in pairwise(bounds) if stop > start]

        def attend(qkv: torch.Tensor) -> torch.Tensor:
            query, key, value = qkv.unbind(1)
            mixed = torch.empty_like(query, memory_format=torch.contiguous_format)
            mixed[bounds[-1] :] = 0
            for start, stop in segments:
                q, k, v = (part[start:stop].transpose(0, 1)[None] for part in (query, key, value))
                mixed[start:stop] = F.scaled_dot_product_attention(q, k, v)[0].transpose(0, 1)
            return mixed

        return attend

    def rotate(self, qkv: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
        """Computed in float32."""
        cos, sin = cos[:, None, None], sin[:, None, None]
        first, second = qkv[:, :2].float().chunk(2, dim=-1)
        qkv[:, :2] = torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(qkv.dtype)

    def add_norm(self, x: torch.Tensor, y: torch.Tensor | None, norm: nn.LayerNorm) -> torch.Tensor:
        """Two operations."""
        if y is not None:
            x += y
        return F.layer_norm(x, norm.normalized_shape, norm.weight, norm.bias, norm.eps)

    def linear_gelu(self, x: torch.Tensor, linear: nn.Linear) -> torch.Tensor:
        """Two operations."""
        return F.gelu(F.linear(x, linear.weight, linear.bias), approximate="tanh")

    def peaks(self, rows: torch.Tensor, out: torch.Tensor) -> None:
        """One pass that finds both ends."""
        low, high = torch.aminmax(rows, dim=1)
        out.copy_(torch.maximum(high, -low))


def choose_ops(device: torch.device) -> Ops:
    """Fused where Triton compiles, plain elsewhere."""
    if device.type != "cuda":
        return PlainOps()
    from foveal.gpu.kernels.fused import FusedOps

    return FusedOps()
