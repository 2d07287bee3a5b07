"""A runner on two arenas, pictures to feed it, and transformers' own tower to compare with."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers.models.qwen3_vl.configuration_qwen3_vl import Qwen3VLVisionConfig
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLVisionModel

from foveal.families.catalogue import spec_of
from foveal.families.checkpoint import open_checkpoint
from foveal.gpu.buffers import Buffers
from foveal.gpu.dummy import draw
from foveal.gpu.executable import DirectCall
from foveal.gpu.layout import Step, embedding_bytes
from foveal.gpu.runner import Runner
from foveal.gpu.start import build_tower
from foveal.gpu.towers.protocol import Tower
from foveal.ipc.arena import Arena, Block
from foveal.ipc.messages import PackDone, PackItem, RunPack, Span
from foveal.types import Output

CPU = torch.device("cpu")
MEAN, STD = (0.48, 0.45, 0.40), (0.27, 0.26, 0.28)
VISION: dict[str, Any] = {
    "deepstack_visual_indexes": [0, 2],
    "depth": 4,
    "hidden_act": "gelu_pytorch_tanh",
    "hidden_size": 48,
    "in_channels": 3,
    "intermediate_size": 80,
    "num_heads": 4,
    "num_position_embeddings": 49,
    "out_hidden_size": 40,
    "patch_size": 4,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
}
ROW_BYTES = 3 * 4 * 4
WIDTH = 3 * 40
TOKENS = Output("tokens", "float32")
Rows = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Picture:
    height: int
    width: int
    rows: Rows

    @property
    def num_tokens(self) -> int:
        return self.height * self.width // 4


def picture(seed: int, height: int, width: int, row_bytes: int = ROW_BYTES) -> Picture:
    rng = np.random.default_rng(seed)
    return Picture(height, width, rng.integers(0, 256, (height * width, row_bytes), dtype=np.uint8))


def write_folder(folder: Path, vision: dict[str, Any] | None = None) -> Path:
    """A Qwen3-VL checkpoint folder without weights."""
    folder.mkdir(exist_ok=True)
    config = {"architectures": ["X"], "model_type": "qwen3_vl", "dtype": "float32", "vision_config": vision or VISION}
    size = {"shortest_edge": 64, "longest_edge": 1 << 20}
    processor = {"size": size, "patch_size": 4, "merge_size": 2, "image_mean": MEAN, "image_std": STD}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    return folder


def reference_model() -> Qwen3VLVisionModel:
    """transformers' tower with weights that leave nothing idle."""
    model = Qwen3VLVisionModel(Qwen3VLVisionConfig(**VISION)).eval()
    model.load_state_dict({name: draw(f"reference {name}", t.shape) for name, t in model.state_dict().items()})
    return model.requires_grad_(False)


def reference_levels(model: Qwen3VLVisionModel, pictures: Sequence[Picture]) -> list[torch.Tensor]:
    """Main and deepstack rows of all pictures, from normalised pixels with the frame doubled."""
    mean, std = torch.tensor(MEAN).view(3, 1, 1, 1), torch.tensor(STD).view(3, 1, 1, 1)
    rows = torch.from_numpy(np.concatenate([p.rows for p in pictures])).view(-1, 3, 1, 4, 4).float()
    pixels = ((rows / 255 - mean) / std).expand(-1, 3, 2, 4, 4).reshape(len(rows), -1)
    grids = torch.tensor([[1, p.height, p.width] for p in pictures])
    out = model(pixels, grids)
    return [out.pooler_output, *out.deepstack_features]


class PackBench:
    """Sends packs to a runner as the api would."""

    def __init__(self, tower: Tower, steps: Sequence[Step], dtype: torch.dtype = torch.float32) -> None:
        self.tower, self.buffers = tower, Buffers(steps[-1], tower.geometry, CPU, dtype)
        self.rows, self.embeddings = Arena("rows", 8 << 20), Arena("embeddings", 8 << 20)
        ladder = {step.tokens: step for step in steps}
        executable = DirectCall(tower, self.buffers, "static")
        self.runner = Runner(tower, executable, ladder, self.rows, self.embeddings, CPU, dtype)

    def item(self, shown: Picture, output: Output = TOKENS) -> tuple[PackItem, Block, Block]:
        rows = self.rows.allocate(shown.rows.nbytes)
        rows.view[:] = shown.rows.reshape(-1)
        empty = PackItem(rows.span, shown.height, shown.width, Span(0, 0), output)
        block = self.embeddings.allocate(embedding_bytes(empty, self.tower.geometry))
        return PackItem(rows.span, shown.height, shown.width, block.span, output), rows, block

    def run(
        self, pictures: Sequence[Picture], budget: int, outputs: Sequence[Output] | None = None
    ) -> tuple[PackDone, list[Block]]:
        outputs = outputs or [TOKENS] * len(pictures)
        made = [self.item(shown, output) for shown, output in zip(pictures, outputs, strict=True)]
        done = self.runner.run(RunPack(1, tuple(item for item, _, _ in made), budget))
        return done, [block for _, _, block in made]

    def encode(self, pictures: Sequence[Picture], budget: int) -> list[npt.NDArray[np.float32]]:
        """Token rows in float32."""
        done, blocks = self.run(pictures, budget)
        assert not done.failures
        return [block.view.view(np.float32).reshape(-1, self.tower.geometry.width).copy() for block in blocks]


class Bench(PackBench):
    """The same for the model of a checkpoint folder."""

    def __init__(self, folder: Path, steps: Sequence[Step], dtype: torch.dtype = torch.float32, dummy: bool = False):
        super().__init__(build_tower(spec_of("test", open_checkpoint(folder, dummy)), CPU, dtype), steps, dtype)


def closeness(found: npt.NDArray[np.float32], wanted: npt.NDArray[np.float32]) -> tuple[float, float]:
    """Least cosine of a token, largest error relative to the largest value."""
    a, b = found.astype(np.float64), wanted.astype(np.float64)
    cosine = (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
    return float(cosine.min()), float(np.abs(a - b).max() / np.abs(b).max())
