"""A feeder for small towers, with pictures to send and buffers to poison."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from foveal.bench.feeder import TOKENS, Feeder
from foveal.gpu.layout import Step
from foveal.ipc.arena import Block
from foveal.ipc.messages import PackItem
from foveal.types import Output
from tests.unit.gpu.bench import Picture, write_folder


def vision(head_dim: int) -> dict[str, Any]:
    """A small tower with heads of this size."""
    return {
        "deepstack_visual_indexes": [0, 2],
        "depth": 4,
        "hidden_act": "gelu_pytorch_tanh",
        "hidden_size": 4 * head_dim,
        "in_channels": 3,
        "intermediate_size": 8 * head_dim,
        "num_heads": 4,
        "num_position_embeddings": 576,
        "out_hidden_size": 64,
        "patch_size": 4,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
    }


class Machine(Feeder):
    """Sends pictures."""

    def __init__(
        self, folder: Path, steps: Sequence[Step], config: dict[str, Any], dtype: torch.dtype = torch.bfloat16
    ) -> None:
        super().__init__(write_folder(folder, config), steps, dtype)
        self.head_dim = config["hidden_size"] // config["num_heads"]

    def shown(self, picture: Picture, output: Output = TOKENS) -> tuple[PackItem, Block, Block]:
        """An item of this picture, the block of its embedding, the block of its rows."""
        rows = self.arenas["rows"].allocate(picture.rows.nbytes)
        rows.view[:] = picture.rows.reshape(-1)
        return (*self.item(rows.span, picture.height, picture.width, output), rows)

    def encode(
        self, pictures: Sequence[Picture], budget: int, outputs: Output | Sequence[Output] = TOKENS
    ) -> list[bytes]:
        """Answers to these pictures in one pack, all asked for alike or each its own way."""
        wishes = [outputs] * len(pictures) if isinstance(outputs, Output) else outputs
        made = [self.shown(picture, output) for picture, output in zip(pictures, wishes, strict=True)]
        done = self.submit([item for item, _, _ in made], budget).finish()
        assert not done.failures, done.failures
        return [bytes(block.view) for _, block, _ in made]

    def poison(self) -> None:
        """NaN in every static buffer and in staging."""
        staging = self.runner.staging
        for answers in (self.buffers.answers, staging.answers):
            answers.tokens.fill_(float("nan"))
            answers.results.fill_(float("nan"))
        staging.packed.fill_(255)
        self.buffers.rows.fill_(255)
        self.buffers.metadata.fill_(1 << 30)
        torch.cuda.synchronize()

    def poison_pool(self) -> None:
        """NaN in the memory that graphs take their intermediates from: one more graph of the pool, replayed."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(self.graphs.stream):
            self.graphs.stream.synchronize()
            graph.capture_begin(pool=self.graphs._pool, capture_error_mode="thread_local")
            held = [torch.full((1 << 18,), float("nan"), device=self.device) for _ in range(64)]
            del held
            graph.capture_end()
            graph.replay()
        torch.cuda.synchronize()


def as_float(raw: bytes, dtype: str = "bfloat16") -> np.ndarray[Any, Any]:
    kinds = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
    return torch.frombuffer(bytearray(raw), dtype=kinds[dtype]).float().numpy()
