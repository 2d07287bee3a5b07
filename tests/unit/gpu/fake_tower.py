"""A tower that no engine knows: two rows in front of each picture, perhaps one size, its own way of pooling.

Each item is computed by itself, so that an answer has the same bits in any company if the engine puts rows where they
belong. What its bytes say can spoil it: 255 in the first byte makes the pooled row NaN, 254 makes it large.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise

import torch

from foveal.gpu.inputs import Inputs, Outputs
from foveal.gpu.plain_ops import PlainOps
from foveal.gpu.towers.protocol import Geometry

FIXED = Geometry(row_bytes=16, merge_area=1, merge_size=1, width=16, pooled_width=4, prefix_rows=2, fixed_grid=(3, 4))
FREE = Geometry(row_bytes=16, merge_area=1, merge_size=1, width=16, pooled_width=4, prefix_rows=2)
MERGING = Geometry(row_bytes=16, merge_area=4, merge_size=2, width=16, pooled_width=4)
EARLY = replace(MERGING, early_width=12)
GEOMETRIES = {"fixed": FIXED, "prefix": FREE, "merging": MERGING, "early": EARLY}
NAN_BYTE, LARGE_BYTE, LARGE = 255, 254, 1e6


class FakeTower:
    """Implements `Tower`."""

    weights_bytes = 0

    def __init__(self, geometry: Geometry) -> None:
        self.geometry, self.ops = geometry, PlainOps()
        numbers = torch.Generator().manual_seed(1)
        self.matrix = torch.rand(geometry.merge_area * geometry.row_bytes, geometry.width, generator=numbers) - 0.5
        self.pooling = torch.rand(geometry.width, geometry.pooled_width, generator=numbers) - 0.5

    def wanted(self) -> Mapping[str, torch.Size]:
        return {}

    def load(self, tensors: Mapping[str, torch.Tensor]) -> None:
        assert not tensors

    def forward(self, inputs: Inputs, out: Outputs) -> None:
        out.tokens.zero_()
        out.pooled.zero_()
        bounds, sizes = inputs.cu_seqlens.tolist(), inputs.grids.tolist()
        for i, (start, stop) in enumerate(pairwise(bounds)):
            if stop > start:
                self._encode(inputs.rows[start:stop], sizes[i], out, i, start // self.geometry.merge_area)
        out.early_done()

    def _encode(self, rows: torch.Tensor, size: list[int], out: Outputs, item: int, at: int) -> None:
        prefix, patches = self.geometry.prefix_rows, rows[self.geometry.prefix_rows :]
        assert len(patches) == size[0] * size[1], "rows and grid belong to different items"
        merged = patches.reshape(-1, self.matrix.shape[0]).float() / 255
        mean = merged.mean(0) @ self.matrix + size[0]
        tokens = torch.cat([*((mean * (k + 1))[None] for k in range(prefix)), merged @ self.matrix])
        out.tokens[at : at + len(tokens)] = tokens
        told = {NAN_BYTE: float("nan"), LARGE_BYTE: LARGE}.get(int(patches[0, 0]), 1.0)
        out.pooled[item] = mean @ self.pooling * told
