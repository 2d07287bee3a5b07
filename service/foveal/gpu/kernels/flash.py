"""Online softmax: the steps that the attention kernels share, one block of keys after the other.

The algorithm is FlashAttention-2's (Dao, 2023): running maximum `m_i`, running sum `l_i`, accumulator `acc`, and
`alpha`, which rescales both when a block of keys raises the maximum (online softmax: Milakov and Gimelshein, 2018).

Head dimensions that are no power of two are cut into a main and a rest part (72 = 64 + 8, padded to 16), since padding
72 to 128 would waste two fifths of the products. Queries and keys lie rotated in memory: turning a query on its way in
would save a pass over the queries, but then it is a value in registers and not a tile in shared memory, and the whole
kernel takes 1.4 times as long for heads of 72.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl

LOG2_E = math.log2(math.e)


class Cut(NamedTuple):
    """Columns of a head's two parts; `rest` is 0 where there is one part."""

    main: int
    rest: int


def cut_of(head_dim: int) -> Cut:
    """For head dims from 16 on; no part is narrower than a matrix instruction."""
    main = 1 << (head_dim.bit_length() - 1)
    return Cut(main, max(16, triton.next_power_of_2(head_dim - main)) if head_dim > main else 0)


def precision_of(dtype: torch.dtype) -> str:
    """How products are computed; float32 stays float32."""
    return "ieee" if dtype == torch.float32 else "tf32"


@triton.jit
def init_softmax(
    query_row, is_row, HEAD: tl.constexpr, MAIN: tl.constexpr, REST: tl.constexpr, BLOCK_M: tl.constexpr
):  # fmt: skip
    """Load a tile's queries and start a softmax without keys: query, query_rest, acc, acc_rest, m_i, l_i."""
    main = tl.arange(0, MAIN)
    query = tl.load(query_row[:, None] + main[None, :], mask=is_row[:, None], other=0.0)
    query_rest = query
    acc = tl.zeros([BLOCK_M, MAIN], tl.float32)
    acc_rest = acc
    if REST > 0:
        rest = MAIN + tl.arange(0, REST)
        is_there = is_row[:, None] & (rest < HEAD)[None, :]
        query_rest = tl.load(query_row[:, None] + rest[None, :], mask=is_there, other=0.0)
        acc_rest = tl.zeros([BLOCK_M, REST], tl.float32)
    m_i = tl.full([BLOCK_M], -1.0e30, tl.float32)
    l_i = tl.full([BLOCK_M], 0.0, tl.float32)
    return query, query_rest, acc, acc_rest, m_i, l_i


@triton.jit
def update_softmax(
    query, query_rest, acc, acc_rest, m_i, l_i, key_base, keys, is_key, scale, stride_row, stride_part,
    HEAD: tl.constexpr, MAIN: tl.constexpr, REST: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Take one block of keys into the running softmax: returns acc, acc_rest, m_new, l_i.

    All of `keys` are read, so they must be rows that there are; those with `is_key` False weigh nothing. At least one
    must be True.
    """
    main = tl.arange(0, MAIN)
    key_row = key_base + keys.to(tl.int64) * stride_row
    value_row = key_row + stride_part
    scores = tl.dot(query, tl.load(key_row[None, :] + main[:, None]), input_precision=PRECISION)
    if REST > 0:
        rest = MAIN + tl.arange(0, REST)
        key_rest = tl.load(key_row[None, :] + rest[:, None], mask=(rest < HEAD)[:, None], other=0.0)
        scores = tl.dot(query_rest, key_rest, scores, input_precision=PRECISION)
    scores = tl.where(is_key[None, :], scores, -1.0e30)
    m_new = tl.maximum(m_i, tl.max(scores, 1) * scale)
    weights = tl.exp2(scores * scale - m_new[:, None])
    alpha = tl.exp2(m_i - m_new)
    l_i = l_i * alpha + tl.sum(weights, 1)
    value = tl.load(value_row[:, None] + main[None, :])
    weights = weights.to(value.dtype)
    acc = tl.dot(weights, value, acc * alpha[:, None], input_precision=PRECISION)
    if REST > 0:
        rest = MAIN + tl.arange(0, REST)
        value_rest = tl.load(value_row[:, None] + rest[None, :], mask=(rest < HEAD)[None, :], other=0.0)
        acc_rest = tl.dot(weights, value_rest, acc_rest * alpha[:, None], input_precision=PRECISION)
    return acc, acc_rest, m_new, l_i


@triton.jit
def store_acc(
    out_row, is_row, acc, acc_rest, l_i,
    HEAD: tl.constexpr, MAIN: tl.constexpr, REST: tl.constexpr,
):  # fmt: skip
    """Divide by the weights' sum and write; a row without keys gets zeros, not NaN."""
    l_i = tl.where(l_i == 0.0, 1.0, l_i)
    main = tl.arange(0, MAIN)
    kept = (acc / l_i[:, None]).to(out_row.dtype.element_ty)
    tl.store(out_row[:, None] + main[None, :], kept, mask=is_row[:, None])
    if REST > 0:
        rest = MAIN + tl.arange(0, REST)
        kept_rest = (acc_rest / l_i[:, None]).to(out_row.dtype.element_ty)
        tl.store(out_row[:, None] + rest[None, :], kept_rest, mask=is_row[:, None] & (rest < HEAD)[None, :])
