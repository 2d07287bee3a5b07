"""The static tensors that a forward reads and writes, and the only code that fills them.

One set, sized for the largest step, serves the whole ladder: a smaller step sees its head. So forty steps cost no
more than one, and addresses never change, which is what a graph needs. Only one forward runs at a time.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from foveal.gpu.layout import Layout, Step
from foveal.gpu.towers.protocol import Geometry, Inputs

_ALIGNED_INTS = 4


class Buffers:
    """Inputs and output for every step up to the capacity."""

    def __init__(self, capacity: Step, geometry: Geometry, device: torch.device, dtype: torch.dtype) -> None:
        self.capacity, self.geometry, self.device = capacity, geometry, device
        num_patches = capacity.tokens * geometry.merge_area
        self._rows = torch.zeros((num_patches, geometry.row_bytes), dtype=torch.uint8, device=device)
        self._output = torch.zeros((capacity.tokens, geometry.width), dtype=dtype, device=device)
        # one block, so that a pack's metadata travels in one copy: cumulative patches, then grids
        self._grids_at = -(-(capacity.items + 1) // _ALIGNED_INTS) * _ALIGNED_INTS
        size = self._grids_at + 2 * capacity.items
        self._metadata = torch.zeros(size, dtype=torch.int32, device=device)
        self._staged = torch.zeros(size, dtype=torch.int32, pin_memory=device.type == "cuda")
        self._staged_numbers: npt.NDArray[np.int32] = self._staged.numpy()

    @property
    def nbytes(self) -> int:
        """Device memory of all of them."""
        return self._rows.nbytes + self._output.nbytes + self._metadata.nbytes

    def inputs(self, step: Step) -> Inputs:
        """What the forward of a step reads."""
        grids = self._metadata[self._grids_at :].view(-1, 2)
        num_patches = step.tokens * self.geometry.merge_area
        return Inputs(self._rows[:num_patches], self._metadata[: step.items + 1], grids[: step.items])

    def output(self, step: Step) -> torch.Tensor:
        """What the forward of a step writes: [tokens, width]. The next run overwrites it."""
        return self._output[: step.tokens]

    def copy_in(self, layout: Layout, rows: Sequence[npt.NDArray[np.uint8]]) -> None:
        """Bring a pack's rows and places to the device. Rows of padding keep what they held: bytes are never NaN."""
        for place, item in zip(layout.patches(), rows, strict=True):
            source = torch.from_numpy(item).view(-1, self.geometry.row_bytes)
            self._rows[place].copy_(source, non_blocking=True)
        self.place(layout)

    def place(self, layout: Layout) -> None:
        """Say where items lie, without new rows."""
        ends, grids = layout.num_items + 1, self._staged_numbers[self._grids_at :].reshape(-1, 2)
        self._staged_numbers[:ends] = layout.cu_patches
        self._staged_numbers[ends : self._grids_at] = layout.cu_patches[-1]
        grids[: layout.num_items] = layout.grids
        grids[layout.num_items :] = self.geometry.merge_size
        self._metadata.copy_(self._staged, non_blocking=True)
