"""Sizes of the attention tiles, chosen by measurement on an H200 (docs/performance.md)."""

from __future__ import annotations

from typing import NamedTuple

import torch


class Tile(NamedTuple):
    """How one program of the attention kernel is cut."""

    rows: int
    keys: int
    warps: int
    stages: int


def tile_for(num_patches: int, head_dim: int, dtype: torch.dtype) -> Tile:
    """Small packs take small tiles, so that all of the GPU has one."""
    if dtype == torch.float32 or head_dim > 128:
        return Tile(32, 32, 4, 2)
    if num_patches <= 512:
        return Tile(64, 128, 4, 2)
    if head_dim == 64:
        return Tile(64, 128, 4, 2) if num_patches <= 1024 else Tile(64, 64, 4, 3)
    return Tile(64, 64, 4, 4) if num_patches <= 1024 else Tile(128, 64, 4, 4)


def window_tile_for(dtype: torch.dtype) -> Tile:
    """One window of Qwen2.5-VL has 64 rows, two tiles.

    Not one tile: from 64 rows on Hopper takes asynchronous matrix instructions, and in the loop over windows, whose
    length is known only as it runs, Triton 3.6 does not wait for them (tests/gpu/test_attention.py, heads of
    72 and 80). Tiles of float32, which takes no matrix unit, would not fit in registers.
    """
    return Tile(16, 32, 4, 1) if dtype == torch.float32 else Tile(32, 64, 4, 1)
