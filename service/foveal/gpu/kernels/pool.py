"""One row for each item: the mean of its rows, or what one learned query takes from them."""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from foveal.gpu.kernels.flash import LOG2_E


@triton.jit
def _mean_rows(
    rows, cu_seqlens, out, width, row_stride, out_stride,
    AREA: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Some columns of one item."""
    item = tl.program_id(0)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_column = columns < width
    start = tl.load(cu_seqlens + item) // AREA
    stop = tl.load(cu_seqlens + item + 1) // AREA
    place = out + item.to(tl.int64) * out_stride + columns
    if start >= stop:  # most items are unused, and so are most programs
        tl.store(place, tl.zeros([BLOCK], tl.float32), mask=is_column)
        return
    within = tl.arange(0, BLOCK_ROWS)
    total = tl.zeros([BLOCK_ROWS, BLOCK], tl.float32)
    for at in tl.range(start, stop, BLOCK_ROWS):
        row = at + within
        is_there = (row < stop)[:, None] & is_column[None, :]
        pointers = rows + row.to(tl.int64)[:, None] * row_stride + columns[None, :]
        total += tl.load(pointers, mask=is_there, other=0.0).to(tl.float32)
    mean = tl.sum(total, 0) / (stop - start).to(tl.float32)
    tl.store(place, mean, mask=is_column)


def mean_rows(rows: torch.Tensor, cu_seqlens: torch.Tensor, merge_area: int, out: torch.Tensor) -> None:
    """See `Ops.mean_rows`; columns of `rows` and `out` lie next to each other."""
    assert rows.stride(1) == 1 and out.stride(1) == 1
    items, width = out.shape
    block = 64  # few columns a program: a lone picture should still reach many of the GPU's units
    _mean_rows[(items, triton.cdiv(width, block))](
        rows,
        cu_seqlens,
        out,
        width,
        rows.stride(0),
        out.stride(0),
        AREA=merge_area,
        BLOCK_ROWS=64,
        BLOCK=block,
        num_warps=4,
    )


@triton.jit
def _pool_attention(
    query, kv, cu_seqlens, out, scale, stride_row, stride_part,
    HEAD: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One head of one item; query [heads, HEAD], kv [rows, 2, heads, HEAD], out [items, heads, HEAD]."""
    item = tl.program_id(0)
    head = tl.program_id(1)
    columns = tl.arange(0, BLOCK)
    is_column = columns < HEAD
    start = tl.load(cu_seqlens + item)
    stop = tl.load(cu_seqlens + item + 1)
    wanted = tl.load(query + head * HEAD + columns, mask=is_column, other=0.0).to(tl.float32) * scale
    place = tl.arange(0, BLOCK_ROWS)
    acc = tl.zeros([BLOCK], tl.float32)
    m_i = -1.0e30
    l_i = 0.0
    for at in tl.range(start, stop, BLOCK_ROWS):
        row = at + place
        is_row = row < stop
        is_there = is_row[:, None] & is_column[None, :]
        pointers = kv + row.to(tl.int64)[:, None] * stride_row + head * HEAD + columns[None, :]
        key = tl.load(pointers, mask=is_there, other=0.0).to(tl.float32)
        scores = tl.where(is_row, tl.sum(key * wanted[None, :], 1), -1.0e30)
        m_new = tl.maximum(m_i, tl.max(scores, 0))
        weights = tl.exp2(scores - m_new)
        alpha = tl.exp2(m_i - m_new)
        value = tl.load(pointers + stride_part, mask=is_there, other=0.0).to(tl.float32)
        acc = acc * alpha + tl.sum(weights[:, None] * value, 0)
        l_i = l_i * alpha + tl.sum(weights, 0)
        m_i = m_new
    acc = acc / tl.where(l_i == 0.0, 1.0, l_i)  # an unused item has no rows: zeros, not NaN
    at_out = (item.to(tl.int64) * tl.num_programs(1) + head) * HEAD + columns
    tl.store(out + at_out, acc.to(out.dtype.element_ty), mask=is_column)


def pool_attention(query: torch.Tensor, kv: torch.Tensor, cu_seqlens: torch.Tensor) -> torch.Tensor:
    """See `Ops.pool_attention`."""
    items, (heads, head_dim) = cu_seqlens.shape[0] - 1, query.shape
    assert query.is_contiguous() and kv.stride(3) == 1 and kv.stride(2) == head_dim
    out = torch.empty((items, heads, head_dim), dtype=kv.dtype, device=kv.device)
    _pool_attention[(items, heads)](
        query,
        kv,
        cu_seqlens,
        out,
        LOG2_E / math.sqrt(head_dim),
        kv.stride(0),
        kv.stride(1),
        HEAD=head_dim,
        BLOCK_ROWS=128,
        BLOCK=triton.next_power_of_2(head_dim),
        num_warps=8,
    )
    return out
