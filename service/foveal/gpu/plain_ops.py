"""`PlainOps`: the operations of a tower in PyTorch, for the CPU. See `foveal.gpu.ops.Ops`."""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby, pairwise

import torch
import torch.nn.functional as F
from torch import nn

from foveal.families.tower_plan import Activation
from foveal.gpu.inputs import Inputs
from foveal.gpu.ops import Attend, Embedded, PositionTables
from foveal.gpu.positions import PatchPositions, antialiased, interpolated, locate, rope_angles, windowed

ACTIVATIONS: dict[Activation, Callable[[torch.Tensor], torch.Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "silu": F.silu,
}


MAX_PART_OPERATIONS = 1 << 33
"""Multiplications and additions of one call of attention: some tenths of a second on a few cores."""
MIN_PART_ROWS = 768
"""Queries of one call; with fewer the kernel takes smaller blocks, and longer."""


class PlainOps:
    """Lengths of segments are read on the host."""

    name = "sdpa-loop"
    is_capturable = False

    def __init__(self) -> None:
        self.between_parts: Callable[[], None] = _nothing
        """Called in every block, and within the attention of a large picture; what it raises ends the forward."""

    def pixels(self, rows: torch.Tensor, centre: float, dtype: torch.dtype) -> torch.Tensor:
        """Three operations."""
        return (rows.to(dtype) - centre) / centre

    def embed_positions(self, inputs: Inputs, patches: torch.Tensor, tables: PositionTables) -> Embedded:
        """Sums in float32."""
        positions = locate(inputs, tables.merge_size, tables.prefix_rows)
        spans = order = None
        if tables.window:
            source, spans, order = windowed(inputs, tables.merge_size, tables.window)
            positions = PatchPositions(*(part.index_select(0, source) for part in positions))
            patches = patches.index_select(0, source)
        x = _embedded(patches.float(), positions, tables).to(patches.dtype)
        if tables.frequencies is None:
            return Embedded(x, None, None, spans, order)
        return Embedded(x, *rope_angles(positions, tables.frequencies), spans, order)

    def attention(self, cu_seqlens: torch.Tensor, embedded: Embedded) -> Attend:
        """One scaled_dot_product_attention for each item."""
        bounds: list[int] = cu_seqlens.tolist()
        segments = [(start, 1, stop - start) for start, stop in pairwise(bounds) if stop > start]
        return self._attend(segments, bounds[-1], embedded)

    def window_attention(self, embedded: Embedded) -> Attend:
        """One scaled_dot_product_attention for each run of windows of one size."""
        assert embedded.windows is not None
        windows = embedded.windows.unique_consecutive(dim=0)
        sizes = [(start, stop - start) for start, stop in windows.tolist() if stop > start]
        segments = [
            (run[0][0], len(run), size)
            for size, group in groupby(sizes, key=lambda window: window[1])
            for run in [list(group)]
        ]
        return self._attend(segments, sum(size for _, size in sizes), embedded)

    def add_norm(self, x: torch.Tensor, y: torch.Tensor | None, norm: nn.LayerNorm | nn.RMSNorm) -> torch.Tensor:
        """Two operations."""
        if y is not None:
            x += y
        normed: torch.Tensor = norm(x)
        return normed

    def activated(self, x: torch.Tensor, linear: nn.Linear, activation: Activation, gated: bool) -> torch.Tensor:
        """Two operations, or three."""
        inner, call = F.linear(x, linear.weight, linear.bias), ACTIVATIONS[activation]
        if not gated:
            return call(inner)
        gate, up = inner.chunk(2, dim=-1)
        return call(gate) * up

    def mean_rows(self, rows: torch.Tensor, cu_seqlens: torch.Tensor, merge_area: int, out: torch.Tensor) -> None:
        """One operation for each item."""
        out.zero_()
        for i, (start, stop) in enumerate(pairwise(cu_seqlens.tolist())):
            if stop > start:
                out[i] = rows[start // merge_area : stop // merge_area].mean(0, dtype=torch.float32)

    def pool_attention(self, query: torch.Tensor, kv: torch.Tensor, cu_seqlens: torch.Tensor) -> torch.Tensor:
        """One operation for each item."""
        mixed = query.new_zeros((cu_seqlens.shape[0] - 1, *query.shape))
        for i, (start, stop) in enumerate(pairwise(cu_seqlens.tolist())):
            if stop > start:
                key, value = kv[start:stop].permute(1, 2, 0, 3)
                mixed[i] = F.scaled_dot_product_attention(query[:, None], key, value)[:, 0]
        return mixed

    def row_absmax(self, rows: torch.Tensor, out: torch.Tensor) -> None:
        """One pass that finds both ends."""
        low, high = torch.aminmax(rows, dim=1)
        out.copy_(torch.maximum(high, -low))

    def _attend(self, segments: list[tuple[int, int, int]], end: int, embedded: Embedded) -> Attend:
        """Attention within segments (first row, how many of one size follow each other, rows of each)."""

        def attend(qkv: torch.Tensor) -> torch.Tensor:
            self.between_parts()
            if embedded.cos is not None and embedded.sin is not None:
                rotate(qkv, embedded.cos, embedded.sin)
            query, key, value = qkv.unbind(1)
            mixed = torch.empty_like(query, memory_format=torch.contiguous_format)
            mixed[end:] = 0
            for start, count, size in segments:
                rows = slice(start, start + count * size)
                q, k, v = (part[rows].unflatten(0, (count, size)).transpose(1, 2) for part in (query, key, value))
                out = mixed[rows].unflatten(0, (count, size)).transpose(1, 2)
                self._mix(q, k, v, out)
            return mixed

        return attend

    def _mix(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor) -> None:
        """Attention of [items, heads, rows, head_dim]: each query sees all keys, so some queries at a time will do."""
        count, heads, size, head_dim = q.shape
        part = max(MIN_PART_ROWS, MAX_PART_OPERATIONS // (4 * count * heads * size * head_dim))
        for first in range(0, size, part):
            if first:
                self.between_parts()
            queries = slice(first, first + part)
            out[:, :, queries] = F.scaled_dot_product_attention(q[:, :, queries], k, v)


def _nothing() -> None:
    """Nobody looks."""


def _embedded(patches: torch.Tensor, positions: PatchPositions, tables: PositionTables) -> torch.Tensor:
    """Patch embeddings, float32, with all that belongs to their positions."""
    if tables.bias is not None:
        patches = patches + tables.bias
    if tables.interpolated is not None:
        patches = patches + interpolated(tables.interpolated, positions)
    if tables.antialiased is not None:
        patches = patches + antialiased(tables.antialiased, positions)
    if tables.fixed is None:
        return patches
    is_prefix = (positions.local < tables.prefix_rows)[:, None]
    return torch.where(is_prefix, 0.0, patches) + F.embedding(positions.local, tables.fixed)


def rotate(qkv: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    """Turn queries and keys of qkv [rows, 3, heads, head_dim] in place, in float32; angles [rows, head_dim / 2]."""
    cos, sin = cos[:, None, None], sin[:, None, None]
    first, second = qkv[:, :2].float().chunk(2, dim=-1)
    qkv[:, :2] = torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(qkv.dtype)
