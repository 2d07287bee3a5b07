"""Activations of what a matrix gave, in one pass: in place, or gated."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from foveal.families.tower_plan import Activation


@triton.jit
def _activate(
    inner, out,
    WIDTH: tl.constexpr, GATED: tl.constexpr, KIND: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Some columns of one row of out [rows, WIDTH]; GATED: inner is [rows, 2 * WIDTH], and its second half a factor."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_column = columns < WIDTH
    at = inner + row * (2 * WIDTH if GATED else WIDTH) + columns
    value = tl.load(at, mask=is_column, other=0.0).to(tl.float32)
    if KIND == "gelu":
        result = 0.5 * value * (1.0 + tl.erf(value * 0.7071067811865476))
    elif KIND == "gelu_tanh":
        # 0.5 (1 + tanh u) = sigmoid(2 u)
        result = value * tl.sigmoid(1.5957691216057308 * (value + 0.044715 * value * value * value))
    elif KIND == "quick_gelu":
        result = value * tl.sigmoid(1.702 * value)
    else:
        tl.static_assert(KIND == "silu")
        result = value * tl.sigmoid(value)
    if GATED:
        result *= tl.load(at + WIDTH, mask=is_column, other=0.0).to(tl.float32)
    tl.store(out + row * WIDTH + columns, result.to(out.dtype.element_ty), mask=is_column)


def activate(inner: torch.Tensor, activation: Activation, gated: bool) -> torch.Tensor:
    """The activation of inner [rows, n], in place; gated: [rows, n] of [rows, 2 n], first half activated, times second.

    Computed in float32.
    """
    assert inner.is_contiguous()
    rows, width = inner.shape
    out = inner
    if gated:
        width //= 2
        out = torch.empty((rows, width), dtype=inner.dtype, device=inner.device)
    block = min(1024, triton.next_power_of_2(width))
    _activate[(rows, triton.cdiv(width, block))](
        inner, out, WIDTH=width, GATED=gated, KIND=activation, BLOCK=block, num_warps=4
    )
    return out
