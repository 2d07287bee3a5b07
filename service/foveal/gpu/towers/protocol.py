"""What the worker asks of a vision tower, and nothing more.

A tower has one forward. It is called directly (CPU, eager) and it is what a CUDA graph captures, so it must not look
at values on the host: no `.item()`, no shape that depends on content. The invariant that makes replay right: the
tensors of `Inputs` and `Outputs` are views of static buffers, the same objects each time; only their content changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch

from foveal.families.tower_plan import TowerPlan
from foveal.gpu.inputs import Inputs, Outputs
from foveal.gpu.ops import Ops


@dataclass(frozen=True)
class Geometry:
    """The sizes that buffers and checks are made from."""

    row_bytes: int
    """Bytes of one uint8 patch row."""
    merge_area: int
    """Patches of one token."""
    merge_size: int
    """Side of the square of patches that becomes one token."""
    width: int
    """Columns of an output row, all levels together."""
    pooled_width: int
    """Columns of a pooled row."""
    early_width: int = 0
    """Columns at the end of an output row that are final before the run is over; `Outputs.early_done` says when."""
    prefix_rows: int = 0
    """Rows of each item before its patches, in input and output: class and register tokens. Only with merge_area 1."""
    fixed_grid: tuple[int, int] | None = None
    """Height and width in patches of every picture, for a tower that takes one size."""


class Tower(Protocol):
    """A vision tower on its device, in its compute dtype."""

    @property
    def geometry(self) -> Geometry:
        """Sizes of rows in and out."""

    @property
    def ops(self) -> Ops:
        """How it computes; may be captured only if these say so."""

    @property
    def plan(self) -> TowerPlan:
        """What it is made of."""

    @property
    def weights_bytes(self) -> int:
        """Device memory of the weights."""

    def wanted(self) -> Mapping[str, torch.Size]:
        """Name within the tower and shape of every tensor that `load` needs."""

    def load(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Take the wanted tensors, in the file's own dtype, to the device; called once, before any forward."""

    def forward(self, inputs: Inputs, out: Outputs) -> None:
        """Write `out`. Every row is finite if the weights are, padding too."""
