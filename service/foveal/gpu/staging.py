"""Between pinned arenas and the static buffers: where a pack waits on the device, so that copies and runs overlap.

The next pack's rows arrive here while the present pack runs; the last pack's output leaves from here while the next
one runs. Moving between staging and static buffers stays on the device, and costs some thousandths of a run.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from foveal.gpu.buffers import Buffers
from foveal.gpu.copies import Copier
from foveal.gpu.layout import Layout
from foveal.ipc.messages import Span

DEPTH = 2
"""Packs that may be under way: one runs, one is copied."""


class Slot:
    """What belongs to one pack under way: pinned host memory and the events of its parts."""

    def __init__(self, metadata_size: int, num_tokens: int) -> None:
        self.metadata = torch.zeros(metadata_size, dtype=torch.int32, pin_memory=True)
        self.numbers: npt.NDArray[np.int32] = self.metadata.numpy()
        self.peaks = torch.zeros(num_tokens, dtype=torch.float32, pin_memory=True)
        self.begun, self.copied, self.started, self.encoded, self.sent = (
            torch.cuda.Event(enable_timing=True) for _ in range(5)
        )


class Staging:
    """Device twins of the static buffers, and the slots."""

    def __init__(self, buffers: Buffers) -> None:
        self.buffers = buffers
        self.copy = Copier()
        self.rows = torch.empty_like(buffers.rows)
        self.metadata = torch.empty_like(buffers.metadata)
        self.output = torch.empty_like(buffers.whole_output)
        self.slots = [Slot(buffers.metadata.numel(), buffers.capacity.tokens) for _ in range(DEPTH)]

    @property
    def nbytes(self) -> int:
        """Device memory."""
        return self.rows.nbytes + self.metadata.nbytes + self.output.nbytes

    def bring(self, slot: Slot, layout: Layout, arena: torch.Tensor, spans: Sequence[Span], stream: int) -> None:
        """Copy a pack's rows and places to the device, on a raw stream, without waiting."""
        self.buffers.fill(slot.numbers, layout)
        self.copy(self.metadata.data_ptr(), slot.metadata.data_ptr(), slot.metadata.nbytes, stream)
        rows, source, row_bytes = self.rows.data_ptr(), arena.data_ptr(), self.buffers.geometry.row_bytes
        for start, span in zip(layout.cu_patches, spans, strict=False):
            self.copy(rows + start * row_bytes, source + span.offset, span.length, stream)

    def hand_over(self, num_patches: int, stream: int) -> None:
        """Move the staged pack into the static buffers."""
        buffers = self.buffers
        num_bytes = num_patches * buffers.geometry.row_bytes
        self.copy(buffers.rows.data_ptr(), self.rows.data_ptr(), num_bytes, stream)
        self.copy(buffers.metadata.data_ptr(), self.metadata.data_ptr(), self.metadata.nbytes, stream)

    def take(self, num_tokens: int, stream: int) -> torch.Tensor:
        """Move rows of output out of the static buffers; where they are now."""
        staged = self.output[:num_tokens]
        self.copy(staged.data_ptr(), self.buffers.whole_output.data_ptr(), staged.nbytes, stream)
        return staged

    def tell_peaks(self, slot: Slot, peaks: torch.Tensor, num_tokens: int, stream: int) -> None:
        """Bring the peaks of a pack's rows to the host."""
        if num_tokens > slot.peaks.numel():
            slot.peaks = torch.zeros(num_tokens, dtype=torch.float32, pin_memory=True)
        self.copy(slot.peaks.data_ptr(), peaks.data_ptr(), 4 * num_tokens, stream)
