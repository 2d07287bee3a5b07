"""`Runner.run(pack)`: check, copy in, encode at the budget or eager, copy out. One pack at a time."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch

from foveal.gpu.buffers import Buffers
from foveal.gpu.copy_out import failures_of, write
from foveal.gpu.executable import DirectCall, Executable
from foveal.gpu.layout import BadPack, Layout, Step, checked_layout
from foveal.gpu.towers.protocol import Tower
from foveal.ipc.arena import MappedArena
from foveal.ipc.messages import PackDone, RunPack


class Pending(Protocol):
    """A pack that was issued."""

    def finish(self) -> PackDone:
        """Wait until its embeddings are written; raises what the device ran into."""


class PackRunner(Protocol):
    """What the worker program asks of either runner."""

    @property
    def device(self) -> torch.device:
        """Where it computes."""

    def submit(self, pack: RunPack) -> Pending:
        """Issue a pack; raises BadPack before anything ran."""


@dataclass(frozen=True)
class Finished:
    """A pack that was run while it was submitted."""

    done: PackDone

    def finish(self) -> PackDone:
        """At once."""
        return self.done


@dataclass(frozen=True)
class Runner:
    """Owns nothing that outlives a pack but the buffers; `ladder` is by the budget's tokens."""

    tower: Tower
    executable: Executable
    ladder: Mapping[int, Step]
    rows: MappedArena
    embeddings: MappedArena
    device: torch.device
    dtype: torch.dtype

    def submit(self, pack: RunPack) -> Finished:
        """Run it now: a CPU has nothing to overlap."""
        return Finished(self.run(pack))

    def run(self, pack: RunPack) -> PackDone:
        """Encode a pack; raises BadPack before anything ran, or whatever the device raised."""
        step = step_of(pack, self.ladder)
        geometry = self.tower.geometry
        layout = checked_layout(pack, step, geometry)
        sources = [self.rows.view(item.rows) for item in pack.items]
        targets = [torch.from_numpy(self.embeddings.view(item.embedding)) for item in pack.items]
        with torch.inference_mode():
            began = time.perf_counter()
            executable, step = (self.executable, step) if step else self._eager(layout)
            executable.buffers.copy_in(layout, sources)
            copied = self._now()
            output = executable.run(step)
            encoded = self._now()
            for place, item, target in zip(layout.tokens(), pack.items, targets, strict=True):
                write(place, item, output, target, geometry)
            done = self._now()
        return PackDone(
            id=pack.id,
            mode=executable.mode,
            copy_in_seconds=copied - began,
            encode_seconds=encoded - copied,
            copy_out_seconds=done - encoded,
            failures=failures_of(layout, pack.items, executable.buffers.peaks.numpy()),
            device_bytes=device_bytes(self.device),
        )

    def _eager(self, layout: Layout) -> tuple[Executable, Step]:
        """The same forward on buffers of just this size, which go when the pack is done."""
        step = Step(layout.num_tokens, layout.num_items)
        return DirectCall(self.tower, Buffers(step, self.tower.geometry, self.device, self.dtype), "eager"), step

    def _now(self) -> float:
        synchronize(self.device)
        return time.perf_counter()


def step_of(pack: RunPack, ladder: Mapping[int, Step]) -> Step | None:
    """The step that a pack asks for; None for eager. Raises BadPack."""
    if pack.budget == 0:
        return None
    if pack.budget not in ladder:
        raise BadPack(f"there is no budget of {pack.budget} tokens: this is a bug")
    return ladder[pack.budget]


def synchronize(device: torch.device) -> None:
    """Wait for the device; raises what its kernels ran into."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def device_bytes(device: torch.device) -> int:
    """Device memory that this process holds; 0 on the CPU."""
    return torch.cuda.memory_reserved(device) if device.type == "cuda" else 0
