"""Passes over rows: residual addition with layer norm, and the peak of each row."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def _add_norm(x, y, weight, bias, out, width, epsilon, HAS_Y: tl.constexpr, BLOCK: tl.constexpr):
    """One row: x += y (kept), out = layer_norm(x)."""
    row = tl.program_id(0).to(tl.int64) * width
    columns = tl.arange(0, BLOCK)
    is_column = columns < width
    value = tl.load(x + row + columns, mask=is_column, other=0.0).to(tl.float32)
    if HAS_Y:
        value += tl.load(y + row + columns, mask=is_column, other=0.0).to(tl.float32)
        tl.store(x + row + columns, value.to(x.dtype.element_ty), mask=is_column)
    mean = tl.sum(value, 0) / width
    centred = tl.where(is_column, value - mean, 0.0)
    variance = tl.sum(centred * centred, 0) / width
    scaled = centred * tl.rsqrt(variance + epsilon)
    gain = tl.load(weight + columns, mask=is_column, other=0.0).to(tl.float32)
    shift = tl.load(bias + columns, mask=is_column, other=0.0).to(tl.float32)
    tl.store(out + row + columns, (scaled * gain + shift).to(out.dtype.element_ty), mask=is_column)


def add_norm(
    x: torch.Tensor, y: torch.Tensor | None, weight: torch.Tensor, bias: torch.Tensor, epsilon: float
) -> torch.Tensor:
    """Layer norm of x + y in float32, rows [n, width]; x keeps the sum. Without y it is a plain layer norm."""
    rows, width = x.shape
    out = torch.empty_like(x)
    block = triton.next_power_of_2(width)
    _add_norm[(rows,)](
        x,
        x if y is None else y,
        weight,
        bias,
        out,
        width,
        epsilon,
        HAS_Y=y is not None,
        BLOCK=block,
        num_warps=2 if block <= 2048 else 8,
    )
    return out


@triton.jit
def _row_peaks(rows, out, width, BLOCK: tl.constexpr):
    """One row: its largest magnitude, as the largest bit pattern, in which NaN is above infinity."""
    row = rows + tl.program_id(0).to(tl.int64) * width
    peak = tl.zeros([BLOCK], tl.int32)
    for at in range(0, width, BLOCK):
        columns = at + tl.arange(0, BLOCK)
        value = tl.load(row + columns, mask=columns < width, other=0.0).to(tl.float32)
        peak = tl.maximum(peak, tl.abs(value).to(tl.int32, bitcast=True))
    tl.store(out + tl.program_id(0), tl.max(peak, 0).to(tl.float32, bitcast=True))


def row_peaks(rows: torch.Tensor, out: torch.Tensor) -> None:
    """Largest magnitude of each row of [n, width] into float32 [n]; NaN and infinity come through."""
    block = min(4096, triton.next_power_of_2(rows.shape[1]))
    _row_peaks[(rows.shape[0],)](rows, out, rows.shape[1], BLOCK=block, num_warps=8)
