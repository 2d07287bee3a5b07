"""A GPU worker's insides without its process: packs made of random pictures, on arenas of one's own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from foveal.families.catalogue import spec_of
from foveal.families.checkpoint import open_checkpoint
from foveal.gpu.buffers import Buffers
from foveal.gpu.copies import Copier
from foveal.gpu.environment import prepare_environment
from foveal.gpu.graphs import GraphSet
from foveal.gpu.ladder import GraphLadder
from foveal.gpu.layout import Step, embedding_bytes
from foveal.gpu.pinning import pin
from foveal.gpu.start import build_tower
from foveal.gpu.stream_runner import Running, StreamRunner
from foveal.ipc.arena import Arena, Block
from foveal.ipc.messages import PackItem, RunPack, Span
from foveal.types import Output

TOKENS = Output("tokens", "bfloat16")


class Feeder:
    """Builds tower, graphs and runner as a worker does, and submits packs to them."""

    def __init__(
        self,
        folder: Path,
        steps: Sequence[Step],
        dtype: torch.dtype = torch.bfloat16,
        arena_bytes: int = 256 << 20,
        dummy_weights: bool = True,
    ) -> None:
        prepare_environment()
        self.device = torch.device("cuda", 0)
        spec = spec_of("bench", open_checkpoint(folder, dummy_weights))
        self.tower = build_tower(spec, self.device, dtype)
        self.buffers = Buffers(steps[-1], self.tower.geometry, self.device, dtype)
        self.graphs = GraphSet(self.tower, self.buffers, torch.cuda.Stream(self.device))
        self.ladder = GraphLadder(self.graphs, steps, 0, True)
        self.arenas = {name: Arena(name, arena_bytes) for name in ("rows", "embeddings")}
        pinned = {name: pin(arena) for name, arena in self.arenas.items()}
        self.runner = StreamRunner(self.graphs, self.ladder, pinned, Copier())
        self._last_id = 0

    def capture_all(self) -> None:
        """Capture every step."""
        while self.ladder.is_pending:
            self.ladder.capture_next()

    def rows(self, num_patches: int, seed: int) -> Block:
        """Random patch rows in the arena."""
        row_bytes = self.tower.geometry.row_bytes
        block = self.arenas["rows"].allocate(num_patches * row_bytes)
        block.view[:] = np.random.default_rng(seed).integers(0, 256, block.span.length, np.uint8)
        return block

    def item(self, rows: Span, height: int, width: int, output: Output = TOKENS) -> tuple[PackItem, Block]:
        """An item of height x width patches, and the block of its embedding."""
        empty = PackItem(rows, height, width, Span(0, 0), output)
        block = self.arenas["embeddings"].allocate(embedding_bytes(empty, self.tower.geometry))
        block.view[:] = 0xFF  # NaN in every float dtype: what was not written shows
        return PackItem(rows, height, width, block.span, output), block

    def submit(self, items: Sequence[PackItem], budget: int) -> Running:
        """Issue a pack."""
        self._last_id += 1
        return self.runner.submit(RunPack(self._last_id, tuple(items), budget))
