"""What families share but no comparison of theirs shows: order of levels, low precision, folding."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLVisionModel

from foveal.families.tower_plan import Names, Pool, Positions, TowerPlan
from foveal.gpu.plain_ops import PlainOps
from foveal.gpu.towers.folding import CENTRE, fold_scales, patch_matrix
from tests.unit.gpu.bench import MEAN, STD, Bench, closeness, picture, reference_levels


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


PATCHES = {"conv2d": (16, 3, 4, 4), "conv3d": (16, 3, 2, 4, 4), "linear": (16, 48)}


def plan_of(patches: str, layer_scale: bool = False) -> TowerPlan:
    return TowerPlan(
        names=Names(("",), {}),
        depth=1,
        hidden=16,
        heads=2,
        intermediate=24,
        patch_size=4,
        patches=patches,  # type: ignore[arg-type]
        activation="gelu",
        positions=Positions(),
        pool=Pool(),
        layer_scale=layer_scale,
    )


@pytest.mark.parametrize("patches", PATCHES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_folding_keeps_patches_near_what_the_files_layer_gives(patches: str, dtype: torch.dtype) -> None:
    rng = torch.Generator().manual_seed(0)
    weight, bias = torch.randn(PATCHES[patches], generator=rng) / 7, torch.randn(16, generator=rng)
    flat = torch.tensor([0, 64, 128, 255], dtype=torch.uint8)[:, None].expand(4, 48)
    rows = torch.cat([flat, torch.randint(0, 256, (5, 48), generator=rng, dtype=torch.uint8)])
    mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in (MEAN, STD))
    pixels = (rows.view(-1, 3, 4, 4).float() / 255 - mean) / std
    if patches == "linear":
        wanted = F.linear(pixels.permute(0, 2, 3, 1).flatten(1), weight, bias)
    else:
        frames = pixels if patches == "conv2d" else pixels[:, :, None].expand(-1, 3, 2, 4, 4)
        wanted = F.linear(frames.flatten(1), weight.flatten(1), bias)
    tensors = {"patch_embed.weight": weight, "patch_embed.bias": bias}
    matrix = patch_matrix(plan_of(patches), tensors, MEAN, STD, dtype)
    found = F.linear(PlainOps().pixels(rows, CENTRE, dtype), matrix.weight).float() + matrix.bias
    spread = {torch.float32: 1e-6, torch.bfloat16: 2e-2, torch.float16: 2e-3}[dtype]
    assert torch.allclose(found, wanted, atol=spread * float(wanted.abs().max())) and not tensors


def test_layer_scales_go_into_the_matrices_before_them() -> None:
    rng = torch.Generator().manual_seed(0)
    x, scale = torch.randn(3, 24, generator=rng), torch.randn(16, generator=rng)
    weight, bias = torch.randn(16, 24, generator=rng), torch.randn(16, generator=rng)
    tensors = {"blocks.0.fc2.weight": weight, "blocks.0.fc2.bias": bias, "blocks.0.scale2": scale}
    tensors |= {"blocks.0.proj.weight": weight, "blocks.0.proj.bias": bias, "blocks.0.scale1": scale}
    fold_scales(plan_of("conv2d", layer_scale=True), tensors)
    assert tensors.keys() == {f"blocks.0.{name}" for name in ("fc2.weight", "fc2.bias", "proj.weight", "proj.bias")}
    found = F.linear(x, tensors["blocks.0.fc2.weight"], tensors["blocks.0.fc2.bias"])
    assert torch.allclose(found, scale * F.linear(x, weight, bias), atol=1e-5)
