"""`Runner.run(pack)`: check, copy in, encode at the budget or eager, copy out. One pack at a time."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch

from foveal.gpu.copy_out import settle, write_tokens
from foveal.gpu.executable import Executable, eager_call
from foveal.gpu.layout import BadPack, Room, Step, checked_layout
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
        room = Room(self.rows.size, self.embeddings.size)
        layout = checked_layout(pack, step, self.tower.geometry, room)
        sources = [torch.from_numpy(self.rows.view(item.rows)) for item in pack.items]
        began = time.perf_counter()
        executable: Executable = self.executable
        if step is None:
            executable, step = eager_call(self.tower, layout, self.device, self.dtype)
        executable.buffers.copy_in(layout, sources)
        copied = self._now()
        executable.run(step)
        encoded = self._now()
        answers, embeddings = executable.buffers.answers, self.embeddings.whole()
        write_tokens(layout, pack.items, answers.tokens, embeddings)
        failures = settle(layout, pack.items, answers.read(answers.results.numpy()), embeddings)
        return PackDone(
            id=pack.id,
            mode=executable.mode,
            copy_in_seconds=copied - began,
            encode_seconds=encoded - copied,
            copy_out_seconds=self._now() - encoded,
            failures=failures,
            device_bytes=device_bytes(self.device),
        )

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
