"""Attention within each item of a pack: a loop on the CPU, one variable-length kernel on CUDA.

An implementation is chosen once, at start. For each forward it turns the segments into a function that every block
calls. Rows beyond the last segment are attended by no item, and what they get is finite (zeros, or a mixture of
themselves): left unwritten, stale NaN would spread into the tiles of real rows.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Protocol

import torch
import torch.nn.functional as F

Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""Query, key, value, each [patches, heads, head_dim], to the mixture [patches, heads, head_dim]."""

MAX_VARLEN_HEAD_DIM = 256


class Attention(Protocol):
    """One way to attend."""

    name: str
    """For /info."""
    is_capturable: bool
    """False if it reads lengths on the host, which no graph can record."""

    def over(self, cu_seqlens: torch.Tensor, num_patches: int) -> Attend:
        """Attention within the segments of `cu_seqlens`, for tensors of `num_patches` rows."""


class SegmentLoop:
    """One scaled_dot_product_attention for each item, with lengths known on the host."""

    name = "sdpa-loop"
    is_capturable = False

    def over(self, cu_seqlens: torch.Tensor, num_patches: int) -> Attend:
        """Read the lengths once, for all blocks."""
        bounds: list[int] = cu_seqlens.tolist()
        segments = [(start, stop) for start, stop in pairwise(bounds) if stop > start]

        def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
            mixed = torch.empty_like(query, memory_format=torch.contiguous_format)
            mixed[bounds[-1] :] = 0
            for start, stop in segments:
                q, k, v = (part[start:stop].transpose(0, 1)[None] for part in (query, key, value))
                mixed[start:stop] = F.scaled_dot_product_attention(q, k, v)[0].transpose(0, 1)
            return mixed

        return attend


class VariableLength:
    """torch's varlen_attn. The longest segment is fixed at the number of rows, so that a graph fits every pack."""

    name = "varlen"
    is_capturable = True

    def over(self, cu_seqlens: torch.Tensor, num_patches: int) -> Attend:
        """Padding becomes the last segment: it attends to itself, and every row is written."""
        from torch.nn.attention.varlen import varlen_attn

        end = cu_seqlens.new_full((1,), num_patches)
        covering = torch.cat([cu_seqlens, end])

        def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
            mixed = varlen_attn(query, key, value, covering, covering, num_patches, num_patches)
            assert isinstance(mixed, torch.Tensor), "log-sum-exp was not asked for: this is a bug"
            return mixed

        return attend


def choose_attention(device: torch.device, dtype: torch.dtype, head_dim: int) -> Attention:
    """The fastest that computes this. The varlen kernel takes 16-bit types and head dims in multiples of 8."""
    fits = dtype is not torch.float32 and head_dim % 8 == 0 and head_dim <= MAX_VARLEN_HEAD_DIM
    return VariableLength() if device.type == "cuda" and fits else SegmentLoop()
