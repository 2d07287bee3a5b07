"""`StreamRunner`: packs on a GPU, with copies in, runs and copies out on streams of their own.

`submit` only issues work: it never waits for the device. `Running.finish` waits for the end of one pack, in another
thread. Order between packs is kept by events: staged rows are not overwritten before they were handed over, staged
answers not before they were sent.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from foveal.gpu.buffers import Answers
from foveal.gpu.copies import IssueCopies
from foveal.gpu.copy_out import TORCH_DTYPES, settle
from foveal.gpu.copy_plan import Copy, tokens_out
from foveal.gpu.executable import eager_call
from foveal.gpu.graphs import GraphSet
from foveal.gpu.ladder import GraphLadder
from foveal.gpu.layout import Layout, Room, Step, checked_layout
from foveal.gpu.staging import DEPTH, Slot, Staging
from foveal.ipc.messages import PackDone, RunPack
from foveal.types import DType


@dataclass(frozen=True)
class Running:
    """A pack under way. Keeps alive what the device still reads."""

    pack: RunPack
    layout: Layout
    slot: Slot
    answers: Answers
    embeddings: npt.NDArray[np.uint8]
    is_replay: bool
    host_seconds: float
    """From the pack's being taken to its run's being issued."""

    def finish(self) -> PackDone:
        """Wait until the token rows lie in the arena, and write the pooled ones; raises what the device ran into."""
        slot, pack = self.slot, self.pack
        slot.sent.synchronize()
        return PackDone(
            id=pack.id,
            mode="graph" if self.is_replay else "eager",
            copy_in_seconds=slot.begun.elapsed_time(slot.copied) / 1000,
            encode_seconds=slot.started.elapsed_time(slot.encoded) / 1000,
            copy_out_seconds=slot.encoded.elapsed_time(slot.sent) / 1000,
            failures=settle(self.layout, pack.items, self.answers.read(slot.results), self.embeddings),
            reason="" if self.is_replay else pack.reason or "not_captured",
        )


class StreamRunner:
    """Up to `DEPTH` packs under way; the caller keeps to that."""

    def __init__(
        self,
        graphs: GraphSet,
        ladder: GraphLadder,
        arenas: Mapping[str, torch.Tensor],
        copy: IssueCopies,
        asks_for_graphs: bool = False,
    ) -> None:
        self.graphs, self.ladder, self.device = graphs, ladder, graphs.buffers.device
        self.staging = Staging(graphs.buffers, arenas, copy)
        self._pinned = arenas  # they are for as long as these very objects live
        self._rows, self._embeddings = arenas["rows"], arenas["embeddings"].numpy()
        self._room = Room(self._rows.numel(), self._embeddings.size)
        self._asks_for_graphs = asks_for_graphs
        self._copy_in, self._copy_out = torch.cuda.Stream(self.device), torch.cuda.Stream(self.device)
        self._handed_over, self._early_sent, self._turn = torch.cuda.Event(), torch.cuda.Event(), 0
        self._sent: torch.cuda.Event | None = None
        torch.cuda.set_stream(graphs.stream)  # of this thread, so that no pack has to say so

    def submit(self, pack: RunPack) -> Running:
        """Issue a pack; raises BadPack before anything was issued. Runs on the thread whose stream is the graphs'.

        What does not need to be known before the run is worked out after it was issued: the device computes meanwhile.
        """
        began = time.perf_counter()
        step = self.ladder.step_for(pack.budget)
        layout = checked_layout(pack, step, self.graphs.buffers.geometry, self._room)
        self._turn = (self._turn + 1) % DEPTH
        slot = self.staging.slots[self._turn]
        if step is None:
            answers = self._run_eager(pack, layout, slot)
        else:
            self._run(step, pack, layout, slot)
            answers = self.staging.answers
        host_seconds = time.perf_counter() - began
        self._hand_out(pack, layout, slot, answers)
        if step is not None and self._asks_for_graphs:
            self.ladder.ask_for(step)
        is_replay = step is not None and step in self.graphs
        return Running(pack, layout, slot, answers, self._embeddings, is_replay, host_seconds)

    def _run(self, step: Step, pack: RunPack, layout: Layout, slot: Slot) -> None:
        """Bring the pack to staging, and from there to the static buffers, and encode it."""
        copy_in, main = self._copy_in, self.graphs.stream
        copy_in.wait_event(self._handed_over)
        slot.begun.record(copy_in)
        self.staging.bring(slot, layout, pack.items, copy_in.cuda_stream)
        slot.copied.record(copy_in)
        main.wait_event(slot.copied)
        slot.started.record(main)
        self.staging.hand_over(layout.num_rows, main.cuda_stream)
        self._handed_over.record(main)
        main.wait_event(self._early_sent)  # the early columns of the run before leave from the static buffers
        self.graphs.run(step)

    def _run_eager(self, pack: RunPack, layout: Layout, slot: Slot) -> Answers:
        """The same forward on buffers of just this size, all on one stream: for packs above the ladder."""
        main, rows = self.graphs.stream, [item.rows for item in pack.items]
        slot.begun.record(main)
        tokens = self.graphs.buffers.answers.tokens
        call, step = eager_call(self.graphs.tower, layout, self.device, tokens.dtype)
        call.buffers.copy_in(layout, [self._rows[span.offset : span.offset + span.length] for span in rows])
        slot.copied.record(main)
        slot.started.record(main)
        call.run(step)
        slot.make_room(call.buffers.answers)
        return call.buffers.answers

    def _hand_out(self, pack: RunPack, layout: Layout, slot: Slot, answers: Answers) -> None:
        """Send what is asked for to the host; from staging, so that the next run may overwrite the static buffers."""
        copies = tokens_out(layout, pack.items, self.graphs.buffers.geometry.width)
        has_pooled = any(item.output.kind == "pooled" for item in pack.items)
        result_bytes = answers.result_bytes(layout.num_tokens, layout.num_items if has_pooled else 0)
        main, copy_out = self.graphs.stream, self._copy_out
        early: Sequence[Copy] = ()
        if answers is self.staging.answers:
            early = self._send_early(copies)
            if self._sent is not None:
                main.wait_event(self._sent)
            num_tokens = layout.num_tokens if copies else 0
            self.staging.take(num_tokens, result_bytes, main.cuda_stream, only_late=bool(early))
        slot.encoded.record(main)
        copy_out.wait_event(slot.encoded)
        self.staging.copy(slot.results_at, answers.results_at, result_bytes, copy_out.cuda_stream)
        if early:
            self.staging.send_late(early, copy_out.cuda_stream)
        else:
            self.staging.send_tokens(copies, answers, copy_out)
        slot.sent.record(copy_out)
        self._sent = slot.sent

    def _send_early(self, copies: Mapping[DType, Sequence[Copy]]) -> Sequence[Copy]:
        """Send the columns that are final early while the run goes on; of which rows, if of any."""
        early, copy_out = self.graphs.buffers.early, self._copy_out
        if early is None or {TORCH_DTYPES[name] for name in copies} != {self.staging.answers.tokens.dtype}:
            return ()  # what must be rounded first goes as a whole
        (found,) = copies.values()
        copy_out.wait_event(early)
        self.staging.send_early(found, copy_out.cuda_stream)
        self._early_sent.record(copy_out)
        return found
