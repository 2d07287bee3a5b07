"""Rotary embedding of queries and keys, in place in the joint qkv tensor."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def _rotate(
    qkv, cos, sin, stride_row,
    HEADS: tl.constexpr, HEAD: tl.constexpr, HALF: tl.constexpr, BLOCK_HEADS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """All query and key heads of one row: pairs (i, i + HALF) turn by the row's angles."""
    row = tl.program_id(0).to(tl.int64)
    pairs = tl.arange(0, BLOCK)
    heads = tl.arange(0, BLOCK_HEADS)
    is_pair = pairs < HALF
    is_there = (heads < HEADS)[:, None] & is_pair[None, :]
    c = tl.load(cos + row * HALF + pairs, mask=is_pair, other=0.0)[None, :]
    s = tl.load(sin + row * HALF + pairs, mask=is_pair, other=0.0)[None, :]
    at = qkv + row * stride_row + heads[:, None] * HEAD + pairs[None, :]
    first = tl.load(at, mask=is_there, other=0.0).to(tl.float32)
    second = tl.load(at + HALF, mask=is_there, other=0.0).to(tl.float32)
    tl.store(at, (first * c - second * s).to(qkv.dtype.element_ty), mask=is_there)
    tl.store(at + HALF, (second * c + first * s).to(qkv.dtype.element_ty), mask=is_there)


def rotate_in_place(qkv: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    """Turn queries and keys of qkv [rows, 3, heads, head_dim]; angles float32 [rows, head_dim / 2]."""
    rows, _, heads, head_dim = qkv.shape
    half = head_dim // 2
    _rotate[(rows,)](
        qkv,
        cos,
        sin,
        qkv.stride(0),
        HEADS=2 * heads,
        HEAD=head_dim,
        HALF=half,
        BLOCK_HEADS=triton.next_power_of_2(2 * heads),
        BLOCK=triton.next_power_of_2(half),
        num_warps=8,
    )
