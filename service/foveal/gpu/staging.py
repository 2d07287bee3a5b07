"""Between pinned arenas and the static buffers: where a pack waits on the device, so that copies and runs overlap.

The next pack arrives here while the present one runs; the last pack's answers leave from here while the next one
runs. Moving between staging and static buffers stays on the device, and costs some thousandths of a run.

Everything goes by address, and all that a pack does not change is worked out at start: a tensor operation costs the
host ten times what issuing a copy costs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch

from foveal.gpu.buffers import Answers, Buffers
from foveal.gpu.copies import IssueCopies
from foveal.gpu.copy_out import TORCH_DTYPES
from foveal.gpu.copy_plan import Copy, rows_in
from foveal.gpu.layout import Layout
from foveal.ipc.messages import PackItem
from foveal.types import DType

DEPTH = 2
"""Packs that may be under way: one runs, one is copied."""


class Slot:
    """What belongs to one pack under way: host memory, and events that say when its parts began and ended."""

    results: npt.NDArray[np.float32]
    results_at: int

    def __init__(self, buffers: Buffers) -> None:
        metadata = buffers.host_metadata()
        self.numbers: npt.NDArray[np.int32] = metadata.numpy()
        self.metadata_at = metadata.data_ptr()
        self._metadata, self._results = metadata, torch.empty(0)
        self.make_room(buffers.answers)
        self.begun, self.copied, self.started, self.encoded, self.sent = (
            torch.cuda.Event(enable_timing=True) for _ in range(5)
        )

    def make_room(self, answers: Answers) -> None:
        """Be able to take these results."""
        size, on_gpu = answers.results.numel(), answers.results.is_cuda
        if size > self._results.numel():
            self._results = torch.zeros(size, dtype=torch.float32, pin_memory=on_gpu)
            self.results, self.results_at = self._results.numpy(), self._results.data_ptr()


class Staging:
    """Device twins of the static buffers, and the slots."""

    def __init__(self, buffers: Buffers, arenas: Mapping[str, torch.Tensor], copy: IssueCopies) -> None:
        self.buffers, self.copy = buffers, copy
        self.packed = torch.empty_like(buffers.packed)
        tokens = buffers.answers.tokens
        self.answers = Answers(buffers.capacity, buffers.geometry, tokens.device, tokens.dtype)
        self.slots = [Slot(buffers) for _ in range(DEPTH)]
        geometry = buffers.geometry
        self._row_bytes, self._width = geometry.row_bytes, geometry.width
        self._late_bytes = (geometry.width - geometry.early_width) * tokens.dtype.itemsize
        self._packed_at = self.packed.data_ptr()
        self._arena_rows, self._arena_embeddings = arenas["rows"].data_ptr(), arenas["embeddings"].data_ptr()

    @property
    def nbytes(self) -> int:
        """Device memory."""
        return self.packed.nbytes + self.answers.nbytes

    def bring(self, slot: Slot, layout: Layout, items: Sequence[PackItem], stream: int) -> None:
        """Copy a pack's rows and places to the device, on a raw stream, without waiting."""
        rows_at = self._packed_at + self.buffers.rows_at
        for target, source, num_bytes in rows_in(layout, items, self._row_bytes):
            self.copy(rows_at + target, self._arena_rows + source, num_bytes, stream)
        self.buffers.fill(slot.numbers, layout)
        self.copy(self._packed_at, slot.metadata_at, self.buffers.rows_at, stream)

    def hand_over(self, num_rows: int, stream: int) -> None:
        """Move the staged pack into the static buffers."""
        num_bytes = self.buffers.rows_at + num_rows * self._row_bytes
        self.copy(self.buffers.packed_at, self._packed_at, num_bytes, stream)

    def take(self, num_tokens: int, result_bytes: int, stream: int, only_late: bool) -> None:
        """Move so many token rows, or none, and results out of the static buffers; or but the rows' late columns."""
        ours, theirs = self.answers, self.buffers.answers
        if only_late:
            self.copy.columns(ours.tokens_at, theirs.tokens_at, self._late_bytes, ours.row_bytes, num_tokens, stream)
        elif num_tokens:
            self.copy(ours.tokens_at, theirs.tokens_at, num_tokens * ours.row_bytes, stream)
        self.copy(ours.results_at, theirs.results_at, result_bytes, stream)

    def send_early(self, copies: Sequence[Copy], stream: int) -> None:
        """Copy the early columns of token rows to their arena, straight from the static buffers."""
        self._send_columns(copies, self.buffers.answers, self._late_bytes, self.answers.row_bytes, stream)

    def send_late(self, copies: Sequence[Copy], stream: int) -> None:
        """Copy the others, from staging."""
        self._send_columns(copies, self.answers, 0, self._late_bytes, stream)

    def _send_columns(self, copies: Sequence[Copy], answers: Answers, start: int, stop: int, stream: int) -> None:
        pitch = answers.row_bytes
        for target, source, num_bytes in copies:
            to, from_ = self._arena_embeddings + target + start, answers.tokens_at + source + start
            self.copy.columns(to, from_, stop - start, pitch, num_bytes // pitch, stream)

    def send_tokens(self, copies: Mapping[DType, Sequence[Copy]], answers: Answers, stream: torch.cuda.Stream) -> None:
        """Copy token rows to their arena, rounded to nearest even in the asked dtype."""
        arena, raw = self._arena_embeddings, stream.cuda_stream
        for name, found in copies.items():
            dtype = TORCH_DTYPES[name]
            if dtype == answers.tokens.dtype:
                for target, source, num_bytes in found:
                    self.copy(arena + target, answers.tokens_at + source, num_bytes, raw)
                continue
            row_bytes = self._width * dtype.itemsize
            with torch.cuda.stream(stream):
                for target, source, num_bytes in found:
                    first = source // row_bytes
                    # its memory may go at once: whatever takes it next comes later on this stream
                    rounded = answers.tokens[first : first + num_bytes // row_bytes].to(dtype)
                    self.copy(arena + target, rounded.data_ptr(), num_bytes, raw)
