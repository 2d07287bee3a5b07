"""Packs of pictures as a forward sees them, with unused places, padding rows, and what they hold poisoned."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from foveal.gpu.inputs import Inputs
from foveal.gpu.ops import Embedded

Grid = tuple[int, int]


def pack(
    grids: Sequence[Grid], merge: int = 2, prefix: int = 0, spare: int = 3, padding: int = 3, device: str = "cpu"
) -> Inputs:
    """`spare` unused places, `padding` tokens behind the last row; unused places hold numbers that mean nothing."""
    lengths = torch.tensor([0, *(prefix + h * w for h, w in grids), *[0] * spare])
    sizes = torch.tensor([*grids, *[(12345, -7)] * spare], dtype=torch.int32)
    rows = torch.empty((int(lengths.sum()) + padding * merge**2, 1), dtype=torch.uint8)
    return Inputs(rows.to(device), lengths.cumsum(0).int().to(device), sizes.to(device))


def used_rows(inputs: Inputs) -> int:
    """Rows before the padding."""
    return int(inputs.cu_seqlens[-1])


def drawn(seed: int, *shape: int, dtype: torch.dtype = torch.float32, device: str = "cpu") -> torch.Tensor:
    """Normal numbers, the same on every device."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(device, dtype)


def close(found: torch.Tensor, wanted: torch.Tensor, atol: float = 2e-6, rtol: float = 2e-5) -> None:
    """Within these bounds in float32, within the bits of a shorter type; whole numbers are equal."""
    assert found.shape == wanted.shape
    if not found.is_floating_point():
        assert torch.equal(found, wanted)
        return
    if found.dtype != torch.float32:
        atol = rtol = 2e-2 if found.dtype == torch.bfloat16 else 4e-3
    torch.testing.assert_close(found.float(), wanted.float(), atol=atol, rtol=rtol)


def masked_attention(qkv: torch.Tensor, owner: torch.Tensor) -> torch.Tensor:
    """Attention of qkv [rows, 3, heads, head_dim] between rows of the same owner [rows], float32."""
    query, key, value = qkv.float().unbind(1)
    mask = owner[:, None] == owner[None, :]
    mixed = F.scaled_dot_product_attention(*(part.transpose(0, 1) for part in (query, key, value)), attn_mask=mask)
    return mixed.transpose(0, 1)


def at_positions(
    rows: torch.Tensor, cos: torch.Tensor | None = None, sin: torch.Tensor | None = None, windows: object = None
) -> Embedded:
    """`Embedded` for what only reads some of it."""
    return Embedded(rows, cos, sin, windows if isinstance(windows, torch.Tensor) else None, None)
