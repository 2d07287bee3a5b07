"""Attention within each item of a pack, scheduled by query tiles.

The grid is made of tiles, not of (items x longest item): one program for each tile of queries that any legal pack can
have, so neither the number of items nor the longest one is baked into a graph, and few programs are idle. A tile
knows its rows and the keys of its item; a tile of padding has no keys and writes zeros. Head dimensions that are no
power of two are cut into a main and a rest part (72 = 64 + 8, padded to 16), since padding 72 to 128 would waste
two fifths of the products.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from foveal.gpu.kernels.tuning import Tile

LOG2_E = math.log2(math.e)


@triton.jit
def _attend(
    qkv, tiles, out, scale, stride_row, stride_part,
    HEAD: tl.constexpr, MAIN: tl.constexpr, REST: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One tile of queries of one head; qkv [patches, 3, heads, HEAD], out [patches, heads, HEAD]."""
    tile = tiles + tl.program_id(0) * 4
    head = tl.program_id(1)
    first, last, start, stop = tl.load(tile), tl.load(tile + 1), tl.load(tile + 2), tl.load(tile + 3)
    if first >= last:
        return
    rows = first + tl.arange(0, BLOCK_M)
    is_row = rows < last
    main = tl.arange(0, MAIN)
    rest = MAIN + tl.arange(0, REST if REST > 0 else 16)
    is_rest = rest < HEAD
    query_row = qkv + rows.to(tl.int64) * stride_row + head * HEAD
    query = tl.load(query_row[:, None] + main[None, :], mask=is_row[:, None], other=0.0)
    mixed = tl.zeros([BLOCK_M, MAIN], tl.float32)
    if REST > 0:
        query_rest = tl.load(query_row[:, None] + rest[None, :], mask=is_row[:, None] & is_rest[None, :], other=0.0)
        mixed_rest = tl.zeros([BLOCK_M, REST], tl.float32)
    peak = tl.full([BLOCK_M], -1.0e30, tl.float32)
    total = tl.full([BLOCK_M], 0.0, tl.float32)
    columns = tl.arange(0, BLOCK_N)
    key_base = qkv + stride_part + head * HEAD
    for at in tl.range(start, stop, BLOCK_N):
        # past the end the last row is read again, which needs no mask; its weights are set to zero below
        keys = tl.maximum(tl.minimum(at + columns, stop - 1), 0)
        key_row = key_base + keys.to(tl.int64) * stride_row
        value_row = key_row + stride_part
        scores = tl.dot(query, tl.load(key_row[None, :] + main[:, None]), input_precision=PRECISION)
        if REST > 0:
            key_rest = tl.load(key_row[None, :] + rest[:, None], mask=is_rest[:, None], other=0.0)
            scores = tl.dot(query_rest, key_rest, scores, input_precision=PRECISION)
        scores = tl.where((at + columns < stop)[None, :], scores, -1.0e30)
        higher = tl.maximum(peak, tl.max(scores, 1) * scale)
        weights = tl.exp2(scores * scale - higher[:, None])
        shrink = tl.exp2(peak - higher)
        total = total * shrink + tl.sum(weights, 1)
        peak = higher
        value = tl.load(value_row[:, None] + main[None, :])
        weights = weights.to(value.dtype)
        mixed = tl.dot(weights, value, mixed * shrink[:, None], input_precision=PRECISION)
        if REST > 0:
            value_rest = tl.load(value_row[:, None] + rest[None, :], mask=is_rest[None, :], other=0.0)
            mixed_rest = tl.dot(weights, value_rest, mixed_rest * shrink[:, None], input_precision=PRECISION)
    total = tl.where(total > 0.0, total, 1.0)  # a tile of padding has no keys: zeros, not NaN
    out_row = out + rows.to(tl.int64) * (tl.num_programs(1) * HEAD) + head * HEAD
    kept = (mixed / total[:, None]).to(out.dtype.element_ty)
    tl.store(out_row[:, None] + main[None, :], kept, mask=is_row[:, None])
    if REST > 0:
        kept_rest = (mixed_rest / total[:, None]).to(out.dtype.element_ty)
        tl.store(out_row[:, None] + rest[None, :], kept_rest, mask=is_row[:, None] & is_rest[None, :])


@triton.jit
def _tile_table(cu_seqlens, table, items, num_patches, ROWS: tl.constexpr, BLOCK_ITEMS: tl.constexpr):
    """One tile: the segment that it lies in, by the running count of tiles of all segments."""
    tile = tl.program_id(0)
    place = tl.arange(0, BLOCK_ITEMS)
    is_segment = place <= items  # the one after the last item is the padding
    is_item = place < items
    start = tl.load(cu_seqlens + place, mask=is_segment, other=0)
    stop = tl.load(cu_seqlens + place + 1, mask=is_item, other=0)
    stop = tl.where(is_item, stop, num_patches)
    count = tl.where(is_segment, (stop - start + ROWS - 1) // ROWS, 0)
    end = tl.cumsum(count, 0)
    is_mine = (end > tile) & (end - count <= tile)
    first = start + (tile - (end - count)) * ROWS
    last = tl.minimum(first + ROWS, stop)
    tl.store(table + tile * 4, tl.sum(tl.where(is_mine, first, 0), 0))
    tl.store(table + tile * 4 + 1, tl.sum(tl.where(is_mine, last, 0), 0))
    tl.store(table + tile * 4 + 2, tl.sum(tl.where(is_mine & is_item, start, 0), 0))
    tl.store(table + tile * 4 + 3, tl.sum(tl.where(is_mine & is_item, stop, 0), 0))


def tile_table(cu_seqlens: torch.Tensor, num_patches: int, rows: int) -> torch.Tensor:
    """Rows and keys of every query tile, int32 [tiles, 4]: first row, past the last, first key, past the last.

    `cu_seqlens` int32 [items + 1] on the device, unused places repeating the last. Padding rows get tiles without
    keys. The number of tiles is what any pack of these sizes can need; tiles over have no rows.
    """
    items = cu_seqlens.shape[0] - 1
    num_tiles = -(-num_patches // rows) + items + 1
    table = torch.empty((num_tiles, 4), dtype=torch.int32, device=cu_seqlens.device)
    block = triton.next_power_of_2(items + 1)
    _tile_table[(num_tiles,)](cu_seqlens, table, items, num_patches, ROWS=rows, BLOCK_ITEMS=block, num_warps=1)
    return table


def attend_tiles(qkv: torch.Tensor, tiles: torch.Tensor, tile: Tile) -> torch.Tensor:
    """Attention for qkv [patches, 3, heads, head_dim]; returns [patches, heads, head_dim]. Head dims from 16 on."""
    num_patches, _, heads, head_dim = qkv.shape
    out = torch.empty((num_patches, heads, head_dim), dtype=qkv.dtype, device=qkv.device)
    main = 1 << (head_dim.bit_length() - 1)
    rest = max(16, triton.next_power_of_2(head_dim - main)) if head_dim > main else 0
    _attend[(tiles.shape[0], heads)](
        qkv,
        tiles,
        out,
        LOG2_E / math.sqrt(head_dim),
        qkv.stride(0),
        qkv.stride(1),
        HEAD=head_dim,
        MAIN=main,
        REST=rest,
        BLOCK_M=tile.rows,
        BLOCK_N=tile.keys,
        PRECISION="ieee" if qkv.dtype == torch.float32 else "tf32",
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    return out
