"""What no implementation on these libraries goes below: linear layers at cuBLAS speed and the best attention found."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from foveal.gpu.kernels.attention import attend_tiles, tile_table
from foveal.gpu.kernels.tuning import tile_for
from foveal.gpu.towers.protocol import Tower
from foveal.gpu.towers.vision import VisionTower

REPEATS = 10


def floor_milliseconds(tower: Tower, grids: list[tuple[int, int]]) -> float:
    """Sum over the tower's linear layers, plus the fastest attention for these grids, as graph replays."""
    assert isinstance(tower, nn.Module)
    patches = sum(h * w for h, w in grids)
    area = tower.geometry.merge_area
    total = 0.0
    shapes: dict[tuple[int, int, int], int] = {}
    for name, layer in tower.named_modules():
        if isinstance(layer, nn.Linear):
            rows = patches if name.startswith("blocks") else patches // area
            shape = (rows, layer.in_features, layer.out_features)
            shapes[shape] = shapes.get(shape, 0) + 1
    with torch.inference_mode():
        for (rows, width, out), count in shapes.items():
            x = torch.randn(rows, width, device="cuda", dtype=torch.bfloat16)
            weight = torch.randn(out, width, device="cuda", dtype=torch.bfloat16)
            bias = torch.randn(out, device="cuda", dtype=torch.bfloat16)
            total += count * _replayed(partial(F.linear, x, weight, bias))
        if isinstance(tower, VisionTower):
            plan = tower.plan
            total += plan.depth * _attention(grids, plan.heads, plan.hidden // plan.heads)
    return total


def _attention(grids: list[tuple[int, int]], heads: int, head_dim: int) -> float:
    lengths = [h * w for h, w in grids]
    patches = sum(lengths)
    qkv = torch.randn(patches, 3, heads, head_dim, device="cuda", dtype=torch.bfloat16)
    ends = torch.tensor([0, *lengths], device="cuda").cumsum(0).int()
    tile = tile_for(patches, head_dim, torch.bfloat16)
    tiles = tile_table(ends, patches, tile.rows)
    best = _replayed(lambda: attend_tiles(qkv, tiles, tile))
    if len(set(lengths)) == 1:
        q, k, v = (part.view(len(lengths), lengths[0], heads, head_dim).transpose(1, 2) for part in qkv.unbind(1))

        def dense() -> torch.Tensor:
            with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
                return F.scaled_dot_product_attention(q, k, v)

        best = min(best, _replayed(dense))
    return best


def _replayed(call: Callable[[], torch.Tensor]) -> float:
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        call()
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin()
        for _ in range(REPEATS):
            call()
        graph.capture_end()
        taken: list[float] = []
        for _ in range(4):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record(stream)
            graph.replay()
            end.record(stream)
            end.synchronize()
            taken.append(begin.elapsed_time(end) / REPEATS)
    return min(taken)
