"""Passes over rows: residual addition with norm, and the absmax of each row."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def _add_norm(
    x, y, weight, bias, out, width, x_stride, y_stride, epsilon,
    HAS_Y: tl.constexpr, HAS_BIAS: tl.constexpr, IS_RMS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One row: x += y (kept), out = norm(x)."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    is_column = columns < width
    value = tl.load(x + row * x_stride + columns, mask=is_column, other=0.0).to(tl.float32)
    if HAS_Y:
        value += tl.load(y + row * y_stride + columns, mask=is_column, other=0.0).to(tl.float32)
        tl.store(x + row * x_stride + columns, value.to(x.dtype.element_ty), mask=is_column)
    if not IS_RMS:
        value = tl.where(is_column, value - tl.sum(value, 0) / width, 0.0)
    scaled = value * tl.rsqrt(tl.sum(value * value, 0) / width + epsilon)
    if IS_RMS:
        scaled = scaled.to(out.dtype.element_ty).to(tl.float32)  # rounded before the weight, as Qwen2RMSNorm does
    scaled *= tl.load(weight + columns, mask=is_column, other=0.0).to(tl.float32)
    if HAS_BIAS:
        scaled += tl.load(bias + columns, mask=is_column, other=0.0).to(tl.float32)
    tl.store(out + row * width + columns, scaled.to(out.dtype.element_ty), mask=is_column)


def add_norm(x: torch.Tensor, y: torch.Tensor | None, norm: nn.LayerNorm | nn.RMSNorm) -> torch.Tensor:
    """Norm of x + y in float32, rows [n, width]; x keeps the sum. Without y it is a plain norm."""
    rows, width = x.shape
    assert x.stride(1) == 1 and (y is None or y.stride(1) == 1) and norm.eps is not None
    out = torch.empty((rows, width), dtype=x.dtype, device=x.device)
    block = triton.next_power_of_2(width)
    bias = None if isinstance(norm, nn.RMSNorm) else norm.bias
    _add_norm[(rows,)](
        x,
        x if y is None else y,
        norm.weight,
        norm.weight if bias is None else bias,
        out,
        width,
        x.stride(0),
        0 if y is None else y.stride(0),
        norm.eps,
        HAS_Y=y is not None,
        HAS_BIAS=bias is not None,
        IS_RMS=isinstance(norm, nn.RMSNorm),
        BLOCK=block,
        num_warps=2 if block <= 2048 else 8,
    )
    return out


@triton.jit
def _row_absmax(rows, out, width, BLOCK: tl.constexpr):
    """One row: its largest magnitude, as the largest bit pattern, in which NaN is above infinity."""
    row = rows + tl.program_id(0).to(tl.int64) * width
    absmax = tl.zeros([BLOCK], tl.int32)
    for at in range(0, width, BLOCK):
        columns = at + tl.arange(0, BLOCK)
        value = tl.load(row + columns, mask=columns < width, other=0.0).to(tl.float32)
        absmax = tl.maximum(absmax, tl.abs(value).to(tl.int32, bitcast=True))
    tl.store(out + tl.program_id(0), tl.max(absmax, 0).to(tl.float32, bitcast=True))


def row_absmax(rows: torch.Tensor, out: torch.Tensor) -> None:
    """Largest magnitude of each row of [n, width] into float32 [n]; NaN and infinity come through."""
    block = min(4096, triton.next_power_of_2(rows.shape[1]))
    _row_absmax[(rows.shape[0],)](rows, out, rows.shape[1], BLOCK=block, num_warps=8)
