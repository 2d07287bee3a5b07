"""transformers' own vision towers of the same shapes, eager, for comparison."""

from __future__ import annotations

import importlib
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from foveal.families.catalogue import spec_of
from foveal.families.checkpoint import open_checkpoint

RUNS = 10
_MODELS = {
    "qwen2_vl": ("Qwen2VLVisionConfig", "Qwen2VisionTransformerPretrainedModel"),
    "qwen2_5_vl": ("Qwen2_5_VLVisionConfig", "Qwen2_5_VisionTransformerPretrainedModel"),
    "qwen3_vl": ("Qwen3VLVisionConfig", "Qwen3VLVisionModel"),
    "qwen3_5": ("Qwen3_5VisionConfig", "Qwen3_5VisionModel"),
    "siglip": ("SiglipVisionConfig", "SiglipVisionModel"),
    "siglip2": ("Siglip2VisionConfig", "Siglip2VisionModel"),
    "clip": ("CLIPVisionConfig", "CLIPVisionModelWithProjection"),
    "dinov2": ("Dinov2Config", "Dinov2Model"),
}
"""By model_type: names within transformers.models.<model_type>."""


def build_model(folder: Path, device: torch.device) -> tuple[str, Any]:
    """Its model_type, and the vision tower of a config.json with random weights and sdpa attention."""
    whole: dict[str, Any] = json.loads((folder / "config.json").read_text())
    kind = whole["model_type"]
    config_name, model_name = _MODELS[kind]
    module = f"transformers.models.{kind}"
    config = getattr(importlib.import_module(f"{module}.configuration_{kind}"), config_name)(
        **whole.get("vision_config", whole)
    )
    config._attn_implementation = "sdpa"
    with device:
        return kind, getattr(importlib.import_module(f"{module}.modeling_{kind}"), model_name)(config)


class ReferenceTower:
    """In bfloat16 with sdpa attention, random weights, inputs on the GPU."""

    def __init__(self, folder: Path) -> None:
        self.kind, model = build_model(folder, torch.device("cuda"))
        self.plan = spec_of("reference", open_checkpoint(folder, dummy_weights=True)).tower
        self.model = model.to(torch.bfloat16).eval()

    def milliseconds(self, grids: list[tuple[int, int]]) -> float:
        """Wall clock of a forward, median of some."""
        inputs = self._inputs(grids)
        taken: list[float] = []
        with torch.inference_mode():
            for i in range(RUNS + 2):
                torch.cuda.synchronize()
                began = time.perf_counter()
                self.model(*inputs)
                torch.cuda.synchronize()
                if i >= 2:
                    taken.append((time.perf_counter() - began) * 1000)
        return statistics.median(taken)

    def _inputs(self, grids: list[tuple[int, int]]) -> tuple[torch.Tensor, ...]:
        """What the model's forward takes: pixel values, and grids where pictures differ in size."""
        size, count = self.plan.patch_size, len(grids)
        height, width = grids[0]
        if self.plan.fixed_grid is not None:
            return (self._noise(count, 3, height * size, width * size),)
        if self.plan.patches == "linear":
            mask = torch.ones((count, height * width), dtype=torch.int64, device="cuda")
            return (self._noise(count, height * width, 3 * size**2), mask, torch.tensor(grids, device="cuda"))
        patches = sum(h * w for h, w in grids)
        thw = torch.tensor([[1, h, w] for h, w in grids], device="cuda")
        return (self._noise(patches, 3 * self.plan.temporal * size**2), thw)

    def _noise(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, device="cuda", dtype=torch.bfloat16)
