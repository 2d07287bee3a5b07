"""The tower computes what transformers' Qwen3VLVisionModel computes, alone and packed, level by level."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLVisionModel

from foveal.errors import ConfigurationError
from foveal.families.catalogue import spec_of
from foveal.families.checkpoint import open_checkpoint
from foveal.gpu.ops import PlainOps
from foveal.gpu.towers.patch_embed import PatchEmbed
from foveal.gpu.towers.qwen3_vl import Qwen3VLTower
from tests.unit.gpu.bench import CPU, MEAN, STD, VISION, Bench, closeness, picture, reference_levels, write_folder

SHAPES = [(8, 8), (24, 2), (2, 28), (2, 2), (14, 10), (4, 34)]
NAMES = ["square", "tall", "wide", "one-token", "finer-than-the-table", "long"]


@pytest.mark.parametrize(("height", "width"), SHAPES, ids=NAMES)
def test_a_lone_picture_matches_the_reference(bench: Bench, model: Qwen3VLVisionModel, height: int, width: int) -> None:
    shown = picture(height * width, height, width)
    wanted = torch.cat(reference_levels(model, [shown]), dim=1).numpy()
    for budget in (64, 160, 0):
        cosine, error = closeness(bench.encode([shown], budget)[0], wanted)
        assert cosine >= 0.99999 and error <= 1e-4


def test_packed_pictures_match_the_reference(bench: Bench, model: Qwen3VLVisionModel) -> None:
    pictures = [picture(i, height, width) for i, (height, width) in enumerate(SHAPES)]
    found = bench.encode(pictures, 160)
    for shown, rows in zip(pictures, found, strict=True):
        cosine, error = closeness(rows, torch.cat(reference_levels(model, [shown]), dim=1).numpy())
        assert cosine >= 0.99999 and error <= 1e-4


def test_levels_come_in_the_order_main_then_deepstack(bench: Bench, model: Qwen3VLVisionModel) -> None:
    shown = picture(5, 6, 4)
    (rows,) = bench.encode([shown], 8)
    levels = reference_levels(model, [shown])
    for i, wanted in enumerate(levels):
        part = rows[:, i * 40 : (i + 1) * 40]
        assert closeness(part, wanted.numpy())[0] >= 0.99999
        assert all(closeness(part, levels[j].numpy())[0] < 0.9 for j in range(3) if j != i)


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.bfloat16, 2e-2), (torch.float16, 3e-3)], ids=["bfloat16", "float16"]
)
def test_low_precision_stays_near_the_reference(
    folder: Path, bench: Bench, model: Qwen3VLVisionModel, dtype: torch.dtype, tolerance: float
) -> None:
    shown = picture(5, 8, 6)
    wanted = torch.cat(reference_levels(model, [shown]), dim=1).numpy()
    (rows,) = Bench(folder, [bench.runner.ladder[24]], dtype).encode([shown], 24)
    assert np.linalg.norm(rows - wanted) / np.linalg.norm(wanted) < tolerance


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_folding_keeps_flat_patches_near_what_the_convolution_gives(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    embed = PatchEmbed(16, 2, 4).requires_grad_(False)
    mean, std = torch.tensor(MEAN).view(1, 3, 1, 1, 1), torch.tensor(STD).view(1, 3, 1, 1, 1)
    rows = torch.tensor([0, 64, 128, 255], dtype=torch.uint8)[:, None].expand(4, 48)
    pixels = (rows.view(4, 3, 1, 4, 4).float() / 255 - mean) / std
    wanted = embed.proj(pixels.expand(4, 3, 2, 4, 4)).flatten(1)
    embed.fold(MEAN, STD, dtype)
    spread = 1e-6 if dtype is torch.float32 else 2e-2 if dtype is torch.bfloat16 else 2e-3
    assert torch.allclose(embed(rows, PlainOps()).float() + embed.bias, wanted, atol=spread * float(wanted.abs().max()))


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"hidden_act": "relu6"}, "hidden_act"),
        ({"num_heads": 7}, "num_heads"),
        ({"num_position_embeddings": 50}, "no square"),
        ({"deepstack_visual_indexes": [2, 0]}, "deepstack"),
        ({"deepstack_visual_indexes": [0, 9]}, "deepstack"),
    ],
    ids=["activation", "heads", "positions", "order", "no-such-block"],
)
def test_a_config_that_would_be_computed_wrongly_is_refused(
    tmp_path: Path, change: dict[str, Any], complaint: str
) -> None:
    checkpoint = open_checkpoint(write_folder(tmp_path / "odd", VISION | change), True)
    with pytest.raises(ConfigurationError, match=complaint):
        Qwen3VLTower(checkpoint, spec_of("odd", checkpoint), CPU, torch.float32)
