"""The way from bytes to the first block's input, in two kernels around the patch matrix.

`centred` makes numbers of bytes. `embed_positions` finds each row's place in its picture, adds bias and position
embeddings to the patch embedding, writes the rope angles, and puts the rows of a window next to each other: what takes
PyTorch some forty launches.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from foveal.gpu.inputs import Inputs
from foveal.gpu.kernels.antialias import antialiased
from foveal.gpu.kernels.locate import find_item, find_patch
from foveal.gpu.ops import Embedded, PositionTables


@triton.jit
def _centre(rows, out, count, centre, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    is_there = at < count
    value = tl.load(rows + at, mask=is_there, other=0).to(tl.float32)
    tl.store(out + at, ((value - centre) / centre).to(out.dtype.element_ty), mask=is_there)


def centred(rows: torch.Tensor, centre: float, dtype: torch.dtype) -> torch.Tensor:
    """(rows - centre) / centre of uint8 [rows, row_bytes], exact in 16 bits for centre 128."""
    out = torch.empty(rows.shape, dtype=dtype, device=rows.device)
    block = 4096
    _centre[(triton.cdiv(rows.numel(), block),)](rows, out, rows.numel(), centre, BLOCK=block, num_warps=8)
    return out


@triton.jit
def _neighbours(index, size, SIDE: tl.constexpr):
    """Lower and upper neighbour in the table, and the weight of the upper one (align_corners)."""
    source = index.to(tl.float32) * (SIDE - 1) / tl.maximum(size - 1, 1).to(tl.float32)
    floor = tl.floor(source)
    lower = floor.to(tl.int32)
    return tl.minimum(lower, SIDE - 1), tl.minimum(lower + 1, SIDE - 1), source - floor


@triton.jit
def _interpolated(table, y, column, height, width, at, is_there, WIDTH: tl.constexpr, SIDE: tl.constexpr):
    """The table's four neighbours of a place, weighed: columns `at` of a row [WIDTH]."""
    y0, y1, wy = _neighbours(y, height, SIDE)
    x0, x1, wx = _neighbours(column, width, SIDE)
    total = tl.load(table + (y0 * SIDE + x0) * WIDTH + at, mask=is_there, other=0.0) * ((1 - wy) * (1 - wx))
    total += tl.load(table + (y0 * SIDE + x1) * WIDTH + at, mask=is_there, other=0.0) * ((1 - wy) * wx)
    total += tl.load(table + (y1 * SIDE + x0) * WIDTH + at, mask=is_there, other=0.0) * (wy * (1 - wx))
    total += tl.load(table + (y1 * SIDE + x1) * WIDTH + at, mask=is_there, other=0.0) * (wy * wx)
    return total


@triton.jit
def _angles(cos, sin, row, y, column, frequencies, QUARTER: tl.constexpr, BLOCK_QUARTER: tl.constexpr):
    """Half of the rotated pairs turn with y, half with x."""
    pair = tl.arange(0, BLOCK_QUARTER)
    is_pair = pair < QUARTER
    frequency = tl.load(frequencies + pair, mask=is_pair, other=0.0)
    angle_y, angle_x = y.to(tl.float32) * frequency, column.to(tl.float32) * frequency
    angles = row.to(tl.int64) * (2 * QUARTER) + pair
    tl.store(cos + angles, tl.cos(angle_y), mask=is_pair)
    tl.store(sin + angles, tl.sin(angle_y), mask=is_pair)
    tl.store(cos + angles + QUARTER, tl.cos(angle_x), mask=is_pair)
    tl.store(sin + angles + QUARTER, tl.sin(angle_x), mask=is_pair)


@triton.jit
def _place(
    patches, bias, fixed, interpolated, extra, frequencies, cu_seqlens, grids, x, cos, sin, windows, order, items,
    WIDTH: tl.constexpr, MERGE: tl.constexpr, PREFIX: tl.constexpr, WINDOW: tl.constexpr,
    HAS_BIAS: tl.constexpr, FIXED: tl.constexpr, SIDE: tl.constexpr, HAS_EXTRA: tl.constexpr, QUARTER: tl.constexpr,
    BLOCK: tl.constexpr, BLOCK_ITEMS: tl.constexpr, BLOCK_QUARTER: tl.constexpr,
):  # fmt: skip
    """One row: its item, its place, its embedding, its angles. FIXED, SIDE and QUARTER are 0 where there is no table.

    Padding and prefix rows take nothing from `patches`.
    """
    row = tl.program_id(0)
    is_item, start, height, width = find_item(row, cu_seqlens, grids, items, MERGE, PREFIX, BLOCK_ITEMS)
    local = row - start
    is_patch = local >= PREFIX
    y, column, number, first, count = find_patch(tl.maximum(local - PREFIX, 0), height, width, MERGE, WINDOW)
    number = tl.where(is_patch, number + PREFIX, local)
    at = tl.arange(0, BLOCK)
    is_there = at < WIDTH
    limit = tl.where(is_item & is_patch, WIDTH, 0)
    total = tl.load(patches + (start + number).to(tl.int64) * WIDTH + at, mask=at < limit, other=0.0).to(tl.float32)
    if HAS_BIAS:
        total += tl.load(bias + at, mask=is_there, other=0.0)
    if SIDE > 0:
        total += _interpolated(interpolated, y, column, height, width, at, is_there, WIDTH, SIDE)
    if HAS_EXTRA:
        total += tl.load(extra + row.to(tl.int64) * WIDTH + at, mask=is_there, other=0.0)
    if PREFIX > 0:
        total = tl.where(is_patch, total, 0.0)
    if FIXED > 0:
        total += tl.load(fixed + tl.minimum(number, FIXED - 1) * WIDTH + at, mask=is_there, other=0.0)
    tl.store(x + row.to(tl.int64) * WIDTH + at, total.to(x.dtype.element_ty), mask=is_there)
    if QUARTER > 0:
        _angles(cos, sin, row, y, column, frequencies, QUARTER, BLOCK_QUARTER)
    if WINDOW > 0:
        first += start
        tl.store(windows + row * 2, tl.where(is_item, first, 0))
        tl.store(windows + row * 2 + 1, tl.where(is_item, first + count, 0))
        # a token's rows stay together and all write the same
        tl.store(order + (start + number) // (MERGE * MERGE), row // (MERGE * MERGE))


def embed_positions(inputs: Inputs, patches: torch.Tensor, tables: PositionTables) -> Embedded:
    """See `Ops.embed_positions`; `patches` [rows, hidden] must be contiguous."""
    assert patches.is_contiguous() and not (tables.window and tables.prefix_rows)
    rows, width = patches.shape
    items = inputs.grids.shape[0]
    device = patches.device
    x = torch.empty_like(patches)
    cos = sin = windows = order = None
    quarter = 0
    if tables.frequencies is not None:
        quarter = tables.frequencies.shape[0]
        cos, sin = torch.empty((2, rows, 2 * quarter), dtype=torch.float32, device=device)
    if tables.window:
        windows = torch.empty((rows, 2), dtype=torch.int32, device=device)
        order = torch.empty(rows // tables.merge_size**2, dtype=torch.int32, device=device)
    extra = None if tables.antialiased is None else antialiased(inputs, rows, tables.antialiased, tables)
    # absent tensors are stood in for by any other: the kernel is compiled without what reads them
    given = (tables.bias, tables.fixed, tables.interpolated, extra, tables.frequencies)
    _place[(rows,)](
        patches,
        *(patches if tensor is None else tensor for tensor in given),
        inputs.cu_seqlens,
        inputs.grids,
        x,
        *(x if tensor is None else tensor for tensor in (cos, sin, windows, order)),
        items,
        WIDTH=width,
        MERGE=tables.merge_size,
        PREFIX=tables.prefix_rows,
        WINDOW=tables.window,
        HAS_BIAS=tables.bias is not None,
        FIXED=0 if tables.fixed is None else tables.fixed.shape[0],
        SIDE=0 if tables.interpolated is None else round(tables.interpolated.shape[0] ** 0.5),
        HAS_EXTRA=extra is not None,
        QUARTER=quarter,
        BLOCK=triton.next_power_of_2(width),
        BLOCK_ITEMS=triton.next_power_of_2(items),
        BLOCK_QUARTER=triton.next_power_of_2(max(quarter, 1)),
        num_warps=4,
    )
    return Embedded(x, cos, sin, windows, order)
