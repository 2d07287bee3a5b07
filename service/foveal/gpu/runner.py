"""`Runner.run(pack)`: check, copy in, encode at the budget or eager, copy out. One pack at a time."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from foveal.gpu.buffers import Buffers
from foveal.gpu.copy_out import copy_out
from foveal.gpu.executable import DirectCall, Executable
from foveal.gpu.layout import BadPack, Layout, Step, checked_layout
from foveal.gpu.towers.protocol import Tower
from foveal.ipc.arena import MappedArena
from foveal.ipc.messages import PackDone, RunPack


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

    def run(self, pack: RunPack) -> PackDone:
        """Encode a pack; raises BadPack before anything ran, or whatever the device raised."""
        step = self._step(pack)
        geometry = self.tower.geometry
        layout = checked_layout(pack, step, geometry)
        sources = [self.rows.view(item.rows) for item in pack.items]
        targets = [self.embeddings.view(item.embedding) for item in pack.items]
        with torch.inference_mode():
            began = time.perf_counter()
            executable, step = (self.executable, step) if step else self._eager(layout)
            executable.buffers.copy_in(layout, sources)
            copied = self._now()
            output = executable.run(step)
            encoded = self._now()
            failures = copy_out(layout, pack.items, output, targets, geometry)
            done = self._now()
        return PackDone(
            id=pack.id,
            mode=executable.mode,
            copy_in_seconds=copied - began,
            encode_seconds=encoded - copied,
            copy_out_seconds=done - encoded,
            failures=failures,
            device_bytes=device_bytes(self.device),
        )

    def _step(self, pack: RunPack) -> Step | None:
        if pack.budget == 0:
            return None
        if pack.budget not in self.ladder:
            raise BadPack(f"there is no budget of {pack.budget} tokens: this is a bug")
        return self.ladder[pack.budget]

    def _eager(self, layout: Layout) -> tuple[Executable, Step]:
        """The same forward on buffers of just this size, which go when the pack is done."""
        step = Step(layout.num_tokens, layout.num_items)
        return DirectCall(self.tower, Buffers(step, self.tower.geometry, self.device, self.dtype), "eager"), step

    def _now(self) -> float:
        synchronize(self.device)
        return time.perf_counter()


def synchronize(device: torch.device) -> None:
    """Wait for the device; raises what its kernels ran into."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def device_bytes(device: torch.device) -> int:
    """Device memory that this process holds; 0 on the CPU."""
    return torch.cuda.memory_reserved(device) if device.type == "cuda" else 0
