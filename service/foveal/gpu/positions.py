"""From a row's number to its place in its picture, and from there to position embedding and rope angles.

Everything is computed on the device from two small int32 tensors, inside the forward, so that no host work and no
large position buffers are needed. Padding rows are given the place (0, 0) of a smallest picture: finite, and unread.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from foveal.gpu.inputs import Inputs


class Places(NamedTuple):
    """For each patch row, int32 [patches]: where it lies and how large its picture is, in patches."""

    y: torch.Tensor
    x: torch.Tensor
    height: torch.Tensor
    width: torch.Tensor


def locate(inputs: Inputs, merge_size: int) -> Places:
    """The places of all rows; within a picture rows come merge block by merge block."""
    cu_seqlens, grids = inputs.cu_seqlens, inputs.grids
    row = torch.arange(inputs.rows.shape[0], dtype=torch.int32, device=cu_seqlens.device)
    # right=True steps over empty segments, so unused places of cu_seqlens own no row
    item = torch.searchsorted(cu_seqlens[1:], row, right=True, out_int32=True)
    is_padding = item >= grids.shape[0]
    item = item.clamp(max=grids.shape[0] - 1)
    local = torch.where(is_padding, 0, row - cu_seqlens.index_select(0, item))
    size = torch.where(is_padding[:, None], merge_size, grids.index_select(0, item))
    height, width = size.unbind(1)
    block, within = _divide(local, merge_size**2)
    block_y, block_x = _divide(block, torch.div(width, merge_size, rounding_mode="floor"))
    within_y, within_x = _divide(within, merge_size)
    return Places(block_y * merge_size + within_y, block_x * merge_size + within_x, height, width)


def _divide(number: torch.Tensor, by: torch.Tensor | int) -> tuple[torch.Tensor, torch.Tensor]:
    quotient = torch.div(number, by, rounding_mode="floor")
    return quotient, number - quotient * by


class PositionTable(nn.Module):
    """Holds a learned square table under its name in the checkpoint."""

    def __init__(self, positions: int, hidden: int) -> None:
        super().__init__()
        # not nn.Embedding: to draw its first values, which nobody needs, torch would import its compiler for a second
        self.weight = nn.Parameter(torch.empty(positions, hidden))


def interpolated(table: torch.Tensor, places: Places) -> torch.Tensor:
    """Bilinear samples, float32 [patches, hidden], of a square table [side², hidden] stretched over each picture.

    The corners of table and picture coincide (align_corners), as in the reference.
    """
    side = round(table.shape[0] ** 0.5)
    y0, y1, wy = _taps(places.y, places.height, side)
    x0, x1, wx = _taps(places.x, places.width, side)
    corners = ((y0, x0, (1 - wy) * (1 - wx)), (y0, x1, (1 - wy) * wx), (y1, x0, wy * (1 - wx)), (y1, x1, wy * wx))
    # one corner after the other: a gather of all four at once would be the largest tensor of the whole forward
    total: torch.Tensor | None = None
    for y, x, weight in corners:
        sample = F.embedding(y * side + x, table)
        total = sample.mul_(weight[:, None]) if total is None else total.addcmul_(sample, weight[:, None])
    assert total is not None
    return total


def _taps(index: torch.Tensor, size: torch.Tensor, side: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Lower and upper neighbour in the table, and the weight of the upper one."""
    source = index.float() * (side - 1) / (size - 1).clamp(min=1)
    floor = source.floor()
    lower = floor.int()
    return lower.clamp(0, side - 1), (lower + 1).clamp(0, side - 1), source - floor


def rope_frequencies(head_dim: int, theta: float, device: torch.device) -> torch.Tensor:
    """Inverse frequencies, float32 [head_dim / 4]: half of the rotated pairs turn with y, half with x."""
    half = head_dim // 2
    return 1.0 / (theta ** (torch.arange(0, half, 2, dtype=torch.float32, device=device) / half))


def rope_angles(places: Places, frequencies: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosine and sine, float32 [patches, head_dim / 2]."""
    angles = torch.cat([places.y[:, None] * frequencies, places.x[:, None] * frequencies], dim=1)
    return angles.cos(), angles.sin()
