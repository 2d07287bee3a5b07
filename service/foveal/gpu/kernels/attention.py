"""Attention within each item of a pack, scheduled by query tiles.

The grid is made of tiles, not of (items x longest item): one program for each tile of queries that any legal pack can
have, so neither the number of items nor the longest one is baked into a graph, and few programs are idle. A tile
knows its rows and the keys of its item; a tile of padding has no keys and writes zeros.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from foveal.gpu.kernels.flash import LOG2_E, cut_of, init_softmax, precision_of, store_acc, update_softmax
from foveal.gpu.kernels.tuning import Tile


@triton.jit
def _attend(
    qkv, tiles, out, scale, stride_row, stride_part,
    HEAD: tl.constexpr, MAIN: tl.constexpr, REST: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One tile of queries of one head; qkv [rows, 3, heads, HEAD], out [rows, heads, HEAD]."""
    tile = tiles + tl.program_id(0) * 4
    head = tl.program_id(1)
    first, last, start, stop = tl.load(tile), tl.load(tile + 1), tl.load(tile + 2), tl.load(tile + 3)
    if first >= last:
        return
    rows = first + tl.arange(0, BLOCK_M)
    is_row = rows < last
    query_row = qkv + rows.to(tl.int64) * stride_row + head * HEAD
    query, query_rest, acc, acc_rest, m_i, l_i = init_softmax(query_row, is_row, HEAD, MAIN, REST, BLOCK_M)
    columns = tl.arange(0, BLOCK_N)
    key_base = qkv + stride_part + head * HEAD
    for at in tl.range(start, stop, BLOCK_N):
        # past the end the last row is read again, which needs no mask; its weights are set to zero
        keys = tl.maximum(tl.minimum(at + columns, stop - 1), 0)
        acc, acc_rest, m_i, l_i = update_softmax(
            query, query_rest, acc, acc_rest, m_i, l_i, key_base, keys, at + columns < stop,
            scale, stride_row, stride_part, HEAD, MAIN, REST, PRECISION,
        )  # fmt: skip
    out_row = out + rows.to(tl.int64) * (tl.num_programs(1) * HEAD) + head * HEAD
    store_acc(out_row, is_row, acc, acc_rest, l_i, HEAD, MAIN, REST)


@triton.jit
def _tile_table(cu_seqlens, table, items, num_rows, ROWS: tl.constexpr, BLOCK_ITEMS: tl.constexpr):
    """One tile: the segment that it lies in, by the running count of tiles of all segments."""
    tile = tl.program_id(0)
    place = tl.arange(0, BLOCK_ITEMS)
    is_segment = place <= items  # the one after the last item is the padding
    is_item = place < items
    start = tl.load(cu_seqlens + place, mask=is_segment, other=0)
    stop = tl.load(cu_seqlens + place + 1, mask=is_item, other=0)
    stop = tl.where(is_item, stop, num_rows)
    count = tl.where(is_segment, (stop - start + ROWS - 1) // ROWS, 0)
    end = tl.cumsum(count, 0)
    is_mine = (end > tile) & (end - count <= tile)
    first = start + (tile - (end - count)) * ROWS
    last = tl.minimum(first + ROWS, stop)
    tl.store(table + tile * 4, tl.sum(tl.where(is_mine, first, 0), 0))
    tl.store(table + tile * 4 + 1, tl.sum(tl.where(is_mine, last, 0), 0))
    tl.store(table + tile * 4 + 2, tl.sum(tl.where(is_mine & is_item, start, 0), 0))
    tl.store(table + tile * 4 + 3, tl.sum(tl.where(is_mine & is_item, stop, 0), 0))


def tile_table(cu_seqlens: torch.Tensor, num_rows: int, rows: int) -> torch.Tensor:
    """Rows and keys of every query tile, int32 [tiles, 4]: first row, past the last, first key, past the last.

    `cu_seqlens` int32 [items + 1] on the device, unused places repeating the last. Padding rows get tiles without
    keys. The number of tiles is what any pack of these sizes can need; tiles over have no rows.
    """
    items = cu_seqlens.shape[0] - 1
    num_tiles = -(-num_rows // rows) + items + 1
    table = torch.empty((num_tiles, 4), dtype=torch.int32, device=cu_seqlens.device)
    block = triton.next_power_of_2(items + 1)
    _tile_table[(num_tiles,)](cu_seqlens, table, items, num_rows, ROWS=rows, BLOCK_ITEMS=block, num_warps=1)
    return table


def attend_tiles(qkv: torch.Tensor, tiles: torch.Tensor, tile: Tile) -> torch.Tensor:
    """Attention for qkv [rows, 3, heads, head_dim]; returns [rows, heads, head_dim]. Head dims from 16 on."""
    num_rows, _, heads, head_dim = qkv.shape
    out = torch.empty((num_rows, heads, head_dim), dtype=qkv.dtype, device=qkv.device)
    main, rest = cut_of(head_dim)
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
        PRECISION=precision_of(qkv.dtype),
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    return out
