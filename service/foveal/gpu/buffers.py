"""The static tensors that a forward reads and writes, and the only code that fills them.

One set, sized for the largest step, serves the whole ladder: a smaller step sees its head. So forty steps cost no
more than one, and addresses never change, which is what a graph needs. Only one forward runs at a time.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from foveal.gpu.inputs import Inputs, Outputs
from foveal.gpu.layout import Layout, Step
from foveal.gpu.towers.protocol import Geometry

_ALIGNMENT = 256
"""Bytes: each part of a block starts as well aligned as a tensor of its own."""


class Results(NamedTuple):
    """What of a finished forward the host looks at, float32."""

    row_absmax: npt.NDArray[np.float32]
    """[tokens]: the largest magnitude of each token row."""
    pooled: npt.NDArray[np.float32]
    """[items, pooled_width]."""


class Answers:
    """What forwards leave: token rows, and in one block, to travel in one copy, the peak of each and pooled rows."""

    def __init__(self, capacity: Step, geometry: Geometry, device: torch.device, dtype: torch.dtype) -> None:
        self.tokens = torch.zeros((capacity.tokens, geometry.width), dtype=dtype, device=device)
        self.row_bytes = geometry.width * dtype.itemsize
        self._pooled_at, self._pooled_width = _aligned(4 * capacity.tokens) // 4, geometry.pooled_width
        size = self._pooled_at + capacity.items * geometry.pooled_width
        self.results = torch.zeros(size, dtype=torch.float32, device=device)
        self.row_absmax = self.results[: capacity.tokens]
        self.pooled = self.results[self._pooled_at :].view(capacity.items, geometry.pooled_width)
        self.tokens_at, self.results_at = self.tokens.data_ptr(), self.results.data_ptr()

    @property
    def nbytes(self) -> int:
        """Device memory."""
        return self.tokens.nbytes + self.results.nbytes

    def result_bytes(self, num_tokens: int, num_pooled: int) -> int:
        """The head of `results` that holds the first row maxima and the first pooled rows."""
        return 4 * (self._pooled_at + num_pooled * self._pooled_width if num_pooled else num_tokens)

    def read(self, numbers: npt.NDArray[np.float32]) -> Results:
        """The parts of a host copy of `results`, as views."""
        pooled = numbers[self._pooled_at : self.results.numel()]
        return Results(numbers[: self._pooled_at], pooled.reshape(-1, self._pooled_width))


class Buffers:
    """Inputs and outputs for every step up to the capacity."""

    def __init__(self, capacity: Step, geometry: Geometry, device: torch.device, dtype: torch.dtype) -> None:
        self.capacity, self.geometry, self.device = capacity, geometry, device
        num_rows = capacity.tokens * geometry.merge_area
        # one block, so that a pack is moved in one copy: cumulative rows, grids, then the rows themselves
        self._grids_at = _aligned(4 * (capacity.items + 1)) // 4
        self.rows_at = _aligned(4 * (self._grids_at + 2 * capacity.items))
        self.packed = torch.zeros(self.rows_at + num_rows * geometry.row_bytes, dtype=torch.uint8, device=device)
        self.metadata = self.packed[: self.rows_at].view(torch.int32)
        self.rows = self.packed[self.rows_at :].view(num_rows, geometry.row_bytes)
        self.packed_at = self.packed.data_ptr()
        self.answers = Answers(capacity, geometry, device, dtype)
        self.early: torch.cuda.Event | None = None
        """Recorded within each run, also within a replay, when the early columns of the answers are final."""
        self._host = self.host_metadata()

    @property
    def nbytes(self) -> int:
        """Device memory of all of them."""
        return self.packed.nbytes + self.answers.nbytes

    def inputs(self, step: Step) -> Inputs:
        """What the forward of a step reads."""
        grids = self.metadata[self._grids_at : self._grids_at + 2 * step.items].view(-1, 2)
        num_rows = step.tokens * self.geometry.merge_area
        return Inputs(self.rows[:num_rows], self.metadata[: step.items + 1], grids)

    def output(self, step: Step) -> Outputs:
        """What the forward of a step writes. The next run overwrites it."""
        return Outputs(self.answers.tokens[: step.tokens], self.answers.pooled[: step.items], self._early_done)

    def _early_done(self) -> None:
        if self.early is not None:
            self.early.record()

    def copy_in(self, layout: Layout, rows: Sequence[torch.Tensor]) -> None:
        """Bring a pack's rows, uint8, and places to the device.

        Padding and prefix rows keep what they held: bytes are never NaN.
        """
        for place, source in zip(layout.patches(), rows, strict=True):
            self.rows[place].copy_(source.view(-1, self.geometry.row_bytes), non_blocking=True)
        self.place(layout)

    def place(self, layout: Layout) -> None:
        """Say where items lie, without new rows."""
        self.fill(self._host.numpy(), layout)
        self.metadata.copy_(self._host, non_blocking=True)

    def host_metadata(self) -> torch.Tensor:
        """A host twin of `metadata`, pinned where there is a GPU."""
        return torch.zeros(self.metadata.numel(), dtype=torch.int32, pin_memory=self.device.type == "cuda")

    def fill(self, numbers: npt.NDArray[np.int32], layout: Layout) -> None:
        """Write a layout into a host twin of `metadata`; unused places repeat the end and are smallest pictures."""
        used, grids_end = len(layout.cu_rows), self._grids_at + 2 * len(layout.grids)
        numbers[:used] = array("i", layout.cu_rows)
        numbers[used : self._grids_at] = layout.num_rows
        numbers[self._grids_at : grids_end] = array("i", chain.from_iterable(layout.grids))
        numbers[grids_end:] = self.geometry.merge_size


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // _ALIGNMENT) * _ALIGNMENT
