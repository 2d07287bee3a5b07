"""A learned square table resized to each picture, bilinear and antialiased, as F.interpolate does it.

Each axis has a triangle of weights around the place's centre; a row's weights are their product. Written out for the
whole table, the resize is one matrix product.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from foveal.gpu.inputs import Inputs
from foveal.gpu.kernels.locate import find_item, find_patch
from foveal.gpu.ops import PositionTables


@triton.jit
def _triangle(index, size, SIDE: tl.constexpr, BLOCK: tl.constexpr):
    """Weights [BLOCK] of the SIDE entries of an axis for one of `size` places on it; they add up to 1."""
    entry = tl.arange(0, BLOCK)
    scale = tl.div_rn(SIDE * 1.0, size.to(tl.float32))
    support = tl.maximum(scale, 1.0)  # as far as an entry, or as a place where these are larger
    centre = (index.to(tl.float32) + 0.5) * scale
    weight = tl.maximum(1.0 - tl.abs((entry.to(tl.float32) + 0.5 - centre) / support), 0.0)
    weight = tl.where(entry < SIDE, weight, 0.0)
    return weight / tl.sum(weight, 0)


@triton.jit
def _weights(
    cu_seqlens, grids, out, items,
    SIDE: tl.constexpr, MERGE: tl.constexpr, PREFIX: tl.constexpr, WINDOW: tl.constexpr,
    BLOCK: tl.constexpr, BLOCK_ITEMS: tl.constexpr,
):  # fmt: skip
    """One row of out [rows, SIDE²]."""
    row = tl.program_id(0)
    _, start, height, width = find_item(row, cu_seqlens, grids, items, MERGE, PREFIX, BLOCK_ITEMS)
    patch = tl.maximum(row - start - PREFIX, 0)
    y, x, _, _, _ = find_patch(patch, height, width, MERGE, WINDOW)
    weight = _triangle(y, height, SIDE, BLOCK)[:, None] * _triangle(x, width, SIDE, BLOCK)[None, :]
    entry = tl.arange(0, BLOCK)
    is_there = (entry < SIDE)[:, None] & (entry < SIDE)[None, :]
    at = row.to(tl.int64) * (SIDE * SIDE) + entry[:, None] * SIDE + entry[None, :]
    tl.store(out + at, weight, mask=is_there)


def antialiased(inputs: Inputs, rows: int, table: torch.Tensor, tables: PositionTables) -> torch.Tensor:
    """The table [side², hidden] at each row's place, float32 [rows, hidden], in the order that the blocks see."""
    side = round(table.shape[0] ** 0.5)
    items = inputs.grids.shape[0]
    weights = torch.empty((rows, side * side), dtype=torch.float32, device=table.device)
    _weights[(rows,)](
        inputs.cu_seqlens,
        inputs.grids,
        weights,
        items,
        SIDE=side,
        MERGE=tables.merge_size,
        PREFIX=tables.prefix_rows,
        WINDOW=tables.window,
        BLOCK=triton.next_power_of_2(side),
        BLOCK_ITEMS=triton.next_power_of_2(items),
        num_warps=1,
    )
    return torch.mm(weights, table)
