"""The static tensors that a forward reads and writes, and the only code that fills them.

One set, sized for the largest step, serves the whole ladder: a smaller step sees its head. So forty steps cost no
more than one, and addresses never change, which is what a graph needs. Only one forward runs at a time.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from foveal.gpu.inputs import Inputs
from foveal.gpu.layout import Layout, Step
from foveal.gpu.towers.protocol import Geometry

_ALIGNED_INTS = 4


class Buffers:
    """Inputs and output for every step up to the capacity."""

    def __init__(self, capacity: Step, geometry: Geometry, device: torch.device, dtype: torch.dtype) -> None:
        self.capacity, self.geometry, self.device = capacity, geometry, device
        num_patches = capacity.tokens * geometry.merge_area
        self.rows = torch.zeros((num_patches, geometry.row_bytes), dtype=torch.uint8, device=device)
        self.whole_output = torch.zeros((capacity.tokens, geometry.width), dtype=dtype, device=device)
        self.peaks = torch.zeros(capacity.tokens, dtype=torch.float32, device=device)
        # one block, so that a pack's metadata travels in one copy: cumulative patches, then grids
        self._grids_at = -(-(capacity.items + 1) // _ALIGNED_INTS) * _ALIGNED_INTS
        size = self._grids_at + 2 * capacity.items
        self.metadata = torch.zeros(size, dtype=torch.int32, device=device)
        self._host = torch.zeros(size, dtype=torch.int32, pin_memory=device.type == "cuda")
        self._host_numbers: npt.NDArray[np.int32] = self._host.numpy()

    @property
    def nbytes(self) -> int:
        """Device memory of all of them."""
        return self.rows.nbytes + self.whole_output.nbytes + self.metadata.nbytes + self.peaks.nbytes

    def inputs(self, step: Step) -> Inputs:
        """What the forward of a step reads."""
        grids = self.metadata[self._grids_at :].view(-1, 2)
        num_patches = step.tokens * self.geometry.merge_area
        return Inputs(self.rows[:num_patches], self.metadata[: step.items + 1], grids[: step.items])

    def output(self, step: Step) -> torch.Tensor:
        """What the forward of a step writes: [tokens, width]. The next run overwrites it."""
        return self.whole_output[: step.tokens]

    def copy_in(self, layout: Layout, rows: Sequence[npt.NDArray[np.uint8]]) -> None:
        """Bring a pack's rows and places to the device. Rows of padding keep what they held: bytes are never NaN."""
        for place, item in zip(layout.patches(), rows, strict=True):
            source = torch.from_numpy(item).view(-1, self.geometry.row_bytes)
            self.rows[place].copy_(source, non_blocking=True)
        self.place(layout)

    def place(self, layout: Layout) -> None:
        """Say where items lie, without new rows."""
        self.fill(self._host_numbers, layout)
        self.metadata.copy_(self._host, non_blocking=True)

    def fill(self, numbers: npt.NDArray[np.int32], layout: Layout) -> None:
        """Write a layout into a host twin of `metadata`."""
        last, side, unused = layout.cu_patches[-1], self.geometry.merge_size, self.capacity.items - layout.num_items
        flat = array("i", layout.cu_patches)
        flat.extend([last] * (self._grids_at - len(flat)))
        for grid in layout.grids:
            flat.extend(grid)
        flat.extend([side] * (2 * unused))
        numbers[:] = np.frombuffer(flat, np.int32)
