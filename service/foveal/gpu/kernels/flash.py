"""The steps that the attention kernels share: one block of keys after the other, the mixture out.

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
def begin_mixing(
    query_row, is_row, HEAD: tl.constexpr, MAIN: tl.constexpr, REST: tl.constexpr, BLOCK_M: tl.constexpr
):  # fmt: skip
    """A tile's queries and a running softmax without keys: query, query_rest, mixed, mixed_rest, peak, total."""
    main = tl.arange(0, MAIN)
    query = tl.load(query_row[:, None] + main[None, :], mask=is_row[:, None], other=0.0)
    query_rest = query
    mixed = tl.zeros([BLOCK_M, MAIN], tl.float32)
    mixed_rest = mixed
    if REST > 0:
        rest = MAIN + tl.arange(0, REST)
        is_there = is_row[:, None] & (rest < HEAD)[None, :]
        query_rest = tl.load(query_row[:, None] + rest[None, :], mask=is_there, other=0.0)
        mixed_rest = tl.zeros([BLOCK_M, REST], tl.float32)
    peak = tl.full([BLOCK_M], -1.0e30, tl.float32)
    total = tl.full([BLOCK_M], 0.0, tl.float32)
    return query, query_rest, mixed, mixed_rest, peak, total


@triton.jit
def mix_keys(
    query, query_rest, mixed, mixed_rest, peak, total, key_base, keys, is_key, scale, stride_row, stride_part,
    HEAD: tl.constexpr, MAIN: tl.constexpr, REST: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Take one block of keys into the running softmax: returns mixed, mixed_rest, peak, total.

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
    higher = tl.maximum(peak, tl.max(scores, 1) * scale)
    weights = tl.exp2(scores * scale - higher[:, None])
    shrink = tl.exp2(peak - higher)
    total = total * shrink + tl.sum(weights, 1)
    value = tl.load(value_row[:, None] + main[None, :])
    weights = weights.to(value.dtype)
    mixed = tl.dot(weights, value, mixed * shrink[:, None], input_precision=PRECISION)
    if REST > 0:
        rest = MAIN + tl.arange(0, REST)
        value_rest = tl.load(value_row[:, None] + rest[None, :], mask=(rest < HEAD)[None, :], other=0.0)
        mixed_rest = tl.dot(weights, value_rest, mixed_rest * shrink[:, None], input_precision=PRECISION)
    return mixed, mixed_rest, higher, total


@triton.jit
def store_mixed(
    out_row, is_row, mixed, mixed_rest, total,
    HEAD: tl.constexpr, MAIN: tl.constexpr, REST: tl.constexpr,
):  # fmt: skip
    """Divide by the weights' total and write; a row without keys gets zeros, not NaN."""
    total = tl.where(total == 0.0, 1.0, total)
    main = tl.arange(0, MAIN)
    kept = (mixed / total[:, None]).to(out_row.dtype.element_ty)
    tl.store(out_row[:, None] + main[None, :], kept, mask=is_row[:, None])
    if REST > 0:
        rest = MAIN + tl.arange(0, REST)
        kept_rest = (mixed_rest / total[:, None]).to(out_row.dtype.element_ty)
        tl.store(out_row[:, None] + rest[None, :], kept_rest, mask=is_row[:, None] & (rest < HEAD)[None, :])
