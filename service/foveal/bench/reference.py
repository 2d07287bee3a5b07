"""transformers' own vision tower of the same shape, eager, for comparison."""

from __future__ import annotations

import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch

RUNS = 10


class ReferenceTower:
    """Qwen3VLVisionModel in bfloat16 with sdpa attention, random weights, inputs on the GPU."""

    def __init__(self, folder: Path) -> None:
        from transformers.models.qwen3_vl.configuration_qwen3_vl import Qwen3VLVisionConfig
        from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLVisionModel

        vision: dict[str, Any] = json.loads((folder / "config.json").read_text())["vision_config"]
        config = Qwen3VLVisionConfig(**vision)
        config._attn_implementation = "sdpa"
        with torch.device("cuda"):
            model: Any = Qwen3VLVisionModel(config)
        self.model = model.to(torch.bfloat16).eval()
        self.row_values = 3 * vision["temporal_patch_size"] * vision["patch_size"] ** 2

    def milliseconds(self, grids: list[tuple[int, int]]) -> float:
        """Wall clock of a forward, median of some."""
        patches = sum(h * w for h, w in grids)
        pixels = torch.randn(patches, self.row_values, device="cuda", dtype=torch.bfloat16)
        thw = torch.tensor([[1, h, w] for h, w in grids], device="cuda")
        taken: list[float] = []
        with torch.inference_mode():
            for i in range(RUNS + 2):
                torch.cuda.synchronize()
                began = time.perf_counter()
                self.model(pixels, thw)
                torch.cuda.synchronize()
                if i >= 2:
                    taken.append((time.perf_counter() - began) * 1000)
        return statistics.median(taken)
