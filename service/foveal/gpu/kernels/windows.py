"""Attention within windows: runs of rows that follow each other, each as long as it likes.

A tile is a fixed number of rows, whichever windows they are of. It goes through the keys of all of these, in blocks
that end where a window ends. So a row's keys are summed in the same order wherever its picture lies in the pack, and
what is not finite stays within its window: the rows of other windows drop the whole block instead of weighing it zero.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from foveal.gpu.kernels.flash import LOG2_E, cut_of, init_softmax, precision_of, store_acc, update_softmax
from foveal.gpu.kernels.tuning import window_tile_for


@triton.jit
def _attend_windows(
    qkv, windows, out, num_rows, scale, stride_row, stride_part,
    HEAD: tl.constexpr, MAIN: tl.constexpr, REST: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One tile of queries of one head; qkv [rows, 3, heads, HEAD], windows [rows, 2], out [rows, heads, HEAD]."""
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    head = tl.program_id(1)
    is_row = rows < num_rows
    start = tl.load(windows + rows * 2, mask=is_row, other=0)
    stop = tl.load(windows + rows * 2 + 1, mask=is_row, other=0)
    has_keys = start < stop
    query_row = qkv + rows.to(tl.int64) * stride_row + head * HEAD
    query, query_rest, acc, acc_rest, m_i, l_i = init_softmax(query_row, is_row, HEAD, MAIN, REST, BLOCK_M)
    columns = tl.arange(0, BLOCK_N)
    key_base = qkv + stride_part + head * HEAD
    last = tl.max(tl.where(has_keys, stop, 0), 0)
    at = tl.min(tl.where(has_keys, start, last), 0)
    while at < last:
        edge = tl.load(windows + at * 2 + 1)
        keys = tl.maximum(tl.minimum(at + columns, edge - 1), 0)
        new_acc, new_acc_rest, new_m, new_l = update_softmax(
            query, query_rest, acc, acc_rest, m_i, l_i, key_base, keys, at + columns < edge,
            scale, stride_row, stride_part, HEAD, MAIN, REST, PRECISION,
        )  # fmt: skip
        is_mine = (start <= at) & (at < stop)
        acc = tl.where(is_mine[:, None], new_acc, acc)
        if REST > 0:
            acc_rest = tl.where(is_mine[:, None], new_acc_rest, acc_rest)
        m_i = tl.where(is_mine, new_m, m_i)
        l_i = tl.where(is_mine, new_l, l_i)
        at = tl.maximum(tl.minimum(at + BLOCK_N, edge), at + 1)  # ends whatever `windows` holds
    out_row = out + rows.to(tl.int64) * (tl.num_programs(1) * HEAD) + head * HEAD
    store_acc(out_row, is_row, acc, acc_rest, l_i, HEAD, MAIN, REST)


def attend_windows(qkv: torch.Tensor, windows: torch.Tensor) -> torch.Tensor:
    """As `attend_tiles`, each row within its own window: int32 [rows, 2], first key and past the last.

    The rows of a window name the same window, and are all of it. Rows without keys get zeros.
    """
    num_rows, _, heads, head_dim = qkv.shape
    out = torch.empty((num_rows, heads, head_dim), dtype=qkv.dtype, device=qkv.device)
    main, rest = cut_of(head_dim)
    tile = window_tile_for(qkv.dtype)
    _attend_windows[(triton.cdiv(num_rows, tile.rows), heads)](
        qkv,
        windows,
        out,
        num_rows,
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
