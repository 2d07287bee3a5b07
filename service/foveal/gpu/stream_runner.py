"""`StreamRunner`: packs on a GPU, with copies in, runs and copies out on streams of their own.

`submit` only issues work: it never waits for the device. `Running.finish` waits for the end of one pack, in another
thread. Order between packs is kept by events: staged rows are not overwritten before they were handed over, staged
output not before it was sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from foveal.gpu.buffers import Buffers
from foveal.gpu.copy_out import TORCH_DTYPES, failures_of, write
from foveal.gpu.executable import DirectCall
from foveal.gpu.graphs import GraphSet
from foveal.gpu.ladder import GraphLadder
from foveal.gpu.layout import BadPack, Layout, Step, checked_layout
from foveal.gpu.runner import step_of
from foveal.gpu.staging import Slot, Staging
from foveal.gpu.towers.protocol import Tower
from foveal.ipc.messages import PackDone, RunPack


@dataclass(frozen=True)
class Running:
    """A pack under way. Keeps alive what the device still reads."""

    pack: RunPack
    layout: Layout
    slot: Slot
    output: torch.Tensor
    is_replay: bool

    def finish(self) -> PackDone:
        """Wait until the embeddings lie in the arena; raises what the device ran into."""
        slot = self.slot
        slot.sent.synchronize()
        reason = "" if self.is_replay else self.pack.reason or "not_captured"
        return PackDone(
            id=self.pack.id,
            mode="graph" if self.is_replay else "eager",
            copy_in_seconds=slot.begun.elapsed_time(slot.copied) / 1000,
            encode_seconds=slot.started.elapsed_time(slot.encoded) / 1000,
            copy_out_seconds=slot.encoded.elapsed_time(slot.sent) / 1000,
            failures=failures_of(self.layout, self.pack.items, slot.peaks.numpy()),
            reason=reason,
        )


class StreamRunner:
    """Up to two packs under way; the caller keeps to that."""

    def __init__(
        self,
        tower: Tower,
        graphs: GraphSet,
        ladder: GraphLadder,
        arenas: Mapping[str, torch.Tensor],
        device: torch.device,
        dtype: torch.dtype,
        asks_for_graphs: bool = False,
    ) -> None:
        self.tower, self.graphs, self.ladder, self.device, self.dtype = tower, graphs, ladder, device, dtype
        self._asks_for_graphs = asks_for_graphs
        self.staging = Staging(graphs.buffers)
        self._rows, self._embeddings = arenas["rows"], arenas["embeddings"]
        self._copy_in, self._copy_out = torch.cuda.Stream(device), torch.cuda.Stream(device)
        self._handed_over, self._turn = torch.cuda.Event(), 0
        self._sent: torch.cuda.Event | None = None
        torch.cuda.set_stream(graphs.stream)  # of this thread, so that no pack has to say so

    def submit(self, pack: RunPack) -> Running:
        """Issue a pack; raises BadPack before anything was issued. Runs on the thread whose stream is the graphs'."""
        step = step_of(pack, self.ladder.steps)
        layout = checked_layout(pack, step, self.tower.geometry)
        self._check_spans(pack)
        if step is not None and self._asks_for_graphs:
            self.ladder.ask_for(step)
        self._turn += 1
        slot = self.staging.slots[self._turn % len(self.staging.slots)]
        with torch.inference_mode():
            if step is None:
                output = self._eager(pack, layout, slot)
            else:
                self._bring(pack, layout, slot)
                output = self._run(step, layout, slot)
            self._send(pack, layout, slot, output)
        return Running(pack, layout, slot, output, step is not None and step in self.graphs)

    def _check_spans(self, pack: RunPack) -> None:
        """Copies go by address, so nothing else would notice a span that lies outside its arena."""
        for item in pack.items:
            for span, arena in ((item.rows, self._rows), (item.embedding, self._embeddings)):
                if span.offset < 0 or span.offset + span.length > arena.numel():
                    raise BadPack(f"{span} lies outside an arena of {arena.numel()} bytes: this is a bug")

    def _bring(self, pack: RunPack, layout: Layout, slot: Slot) -> None:
        stream = self._copy_in
        stream.wait_event(self._handed_over)
        slot.begun.record(stream)
        self.staging.bring(slot, layout, self._rows, [item.rows for item in pack.items], stream.cuda_stream)
        slot.copied.record(stream)

    def _run(self, step: Step, layout: Layout, slot: Slot) -> torch.Tensor:
        stream = self.graphs.stream
        stream.wait_event(slot.copied)
        slot.started.record(stream)
        self.staging.hand_over(layout.cu_patches[-1], stream.cuda_stream)
        self._handed_over.record(stream)
        self.graphs.run(step)
        self._await_sent(stream)
        output = self.staging.take(layout.num_tokens, stream.cuda_stream)
        self.staging.tell_peaks(slot, self.graphs.buffers.peaks, layout.num_tokens, stream.cuda_stream)
        slot.encoded.record(stream)
        return output

    def _eager(self, pack: RunPack, layout: Layout, slot: Slot) -> torch.Tensor:
        """The same forward on buffers of just this size, all on one stream: for packs above the ladder."""
        stream, size = self.graphs.stream, Step(layout.num_tokens, layout.num_items)
        slot.begun.record(stream)
        buffers = Buffers(size, self.tower.geometry, self.device, self.dtype)
        spans = [item.rows for item in pack.items]
        buffers.copy_in(layout, [self._rows[s.offset : s.offset + s.length].numpy() for s in spans])
        slot.copied.record(stream)
        slot.started.record(stream)
        output = DirectCall(self.tower, buffers, "eager").run(size)
        self._await_sent(stream)
        self.staging.tell_peaks(slot, buffers.peaks, layout.num_tokens, stream.cuda_stream)
        slot.encoded.record(stream)
        return output

    def _send(self, pack: RunPack, layout: Layout, slot: Slot, output: torch.Tensor) -> None:
        stream = self._copy_out
        stream.wait_event(slot.encoded)
        row_bytes, source, target = output.stride(0) * output.itemsize, output.data_ptr(), self._embeddings.data_ptr()
        raw = stream.cuda_stream
        for place, item in zip(layout.tokens(), pack.items, strict=True):
            span = item.embedding
            if item.output.kind == "tokens" and TORCH_DTYPES[item.output.dtype] == self.dtype:
                self.staging.copy(target + span.offset, source + place.start * row_bytes, span.length, raw)
            else:
                with torch.cuda.stream(stream):
                    there = self._embeddings[span.offset : span.offset + span.length]
                    write(place, item, output, there, self.tower.geometry)
        slot.sent.record(stream)
        self._sent = slot.sent

    def _await_sent(self, stream: torch.cuda.Stream) -> None:
        """The staged output of the pack before must have left."""
        if self._sent is not None:
            stream.wait_event(self._sent)
