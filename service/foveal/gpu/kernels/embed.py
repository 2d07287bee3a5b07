"""The way from bytes to the first block's input, in two kernels around the patch matrix.

`centred` makes numbers of bytes. `placed` finds each row's place in its picture, adds bias and interpolated position
embedding to the patch embedding, and writes the rope angles: what takes PyTorch some forty launches.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from foveal.gpu.inputs import Inputs


@triton.jit
def _centre(rows, out, count, centre, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    is_there = at < count
    value = tl.load(rows + at, mask=is_there, other=0).to(tl.float32)
    tl.store(out + at, ((value - centre) / centre).to(out.dtype.element_ty), mask=is_there)


def centred(rows: torch.Tensor, centre: float, dtype: torch.dtype) -> torch.Tensor:
    """(rows - centre) / centre of uint8 [patches, row_bytes], exact in 16 bits for centre 128."""
    out = torch.empty(rows.shape, dtype=dtype, device=rows.device)
    block = 4096
    _centre[(triton.cdiv(rows.numel(), block),)](rows, out, rows.numel(), centre, BLOCK=block, num_warps=8)
    return out


@triton.jit
def _taps(index, size, SIDE: tl.constexpr):
    """Lower and upper neighbour in the table, and the weight of the upper one (align_corners)."""
    source = index.to(tl.float32) * (SIDE - 1) / tl.maximum(size - 1, 1).to(tl.float32)
    floor = tl.floor(source)
    lower = floor.to(tl.int32)
    return tl.minimum(lower, SIDE - 1), tl.minimum(lower + 1, SIDE - 1), source - floor


@triton.jit
def _place(
    patches, bias, table, frequencies, cu_seqlens, grids, x, cos, sin, items,
    WIDTH: tl.constexpr, SIDE: tl.constexpr, MERGE: tl.constexpr, QUARTER: tl.constexpr,
    BLOCK: tl.constexpr, BLOCK_ITEMS: tl.constexpr, BLOCK_QUARTER: tl.constexpr,
):  # fmt: skip
    """One row: its item, its place in merge-block-major order, its embedding, its angles."""
    row = tl.program_id(0)
    place = tl.arange(0, BLOCK_ITEMS)
    is_item = place < items
    ends = tl.load(cu_seqlens + 1 + place, mask=is_item, other=2147483647)
    item = tl.sum((ends <= row).to(tl.int32), 0)
    is_padding = item >= items
    item = tl.minimum(item, items - 1)
    local = tl.where(is_padding, 0, row - tl.load(cu_seqlens + item))
    height = tl.where(is_padding, MERGE, tl.load(grids + item * 2))
    width = tl.where(is_padding, MERGE, tl.load(grids + item * 2 + 1))
    block, within = local // (MERGE * MERGE), local % (MERGE * MERGE)
    across = width // MERGE
    y = (block // across) * MERGE + within // MERGE
    column = (block % across) * MERGE + within % MERGE
    y0, y1, wy = _taps(y, height, SIDE)
    x0, x1, wx = _taps(column, width, SIDE)
    at = tl.arange(0, BLOCK)
    is_there = at < WIDTH
    total = tl.load(table + (y0 * SIDE + x0) * WIDTH + at, mask=is_there, other=0.0) * ((1 - wy) * (1 - wx))
    total += tl.load(table + (y0 * SIDE + x1) * WIDTH + at, mask=is_there, other=0.0) * ((1 - wy) * wx)
    total += tl.load(table + (y1 * SIDE + x0) * WIDTH + at, mask=is_there, other=0.0) * (wy * (1 - wx))
    total += tl.load(table + (y1 * SIDE + x1) * WIDTH + at, mask=is_there, other=0.0) * (wy * wx)
    start = row.to(tl.int64) * WIDTH
    patch = tl.load(patches + start + at, mask=is_there, other=0.0).to(tl.float32)
    total += patch + tl.load(bias + at, mask=is_there, other=0.0)
    tl.store(x + start + at, total.to(x.dtype.element_ty), mask=is_there)
    pair = tl.arange(0, BLOCK_QUARTER)
    is_pair = pair < QUARTER
    frequency = tl.load(frequencies + pair, mask=is_pair, other=0.0)
    angle_y, angle_x = y.to(tl.float32) * frequency, column.to(tl.float32) * frequency
    angles = row.to(tl.int64) * (2 * QUARTER) + pair
    tl.store(cos + angles, tl.cos(angle_y), mask=is_pair)
    tl.store(sin + angles, tl.sin(angle_y), mask=is_pair)
    tl.store(cos + angles + QUARTER, tl.cos(angle_x), mask=is_pair)
    tl.store(sin + angles + QUARTER, tl.sin(angle_x), mask=is_pair)


def placed(
    inputs: Inputs,
    merge_size: int,
    patches: torch.Tensor,
    bias: torch.Tensor,
    table: torch.Tensor,
    frequencies: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Input of the first block [patches, hidden] in the dtype of `patches`, and cos, sin [patches, head_dim / 2].

    `table` float32 [side², hidden], `bias` float32 [hidden], `frequencies` float32 [head_dim / 4].
    """
    rows, width = patches.shape
    quarter, items = frequencies.shape[0], inputs.grids.shape[0]
    x = torch.empty_like(patches)
    cos = torch.empty((rows, 2 * quarter), dtype=torch.float32, device=patches.device)
    sin = torch.empty_like(cos)
    _place[(rows,)](
        patches,
        bias,
        table,
        frequencies,
        inputs.cu_seqlens,
        inputs.grids,
        x,
        cos,
        sin,
        items,
        WIDTH=width,
        SIDE=round(table.shape[0] ** 0.5),
        MERGE=merge_size,
        QUARTER=quarter,
        BLOCK=triton.next_power_of_2(width),
        BLOCK_ITEMS=triton.next_power_of_2(items),
        BLOCK_QUARTER=triton.next_power_of_2(quarter),
        num_warps=4,
    )
    return x, cos, sin
