"""In bfloat16 the tower of Qwen3-VL-8B's shape is as near to transformers in float32 as transformers itself is."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from foveal.bench.shape import QWEN3_VL_8B
from foveal.families.catalogue import spec_of
from foveal.families.checkpoint import open_checkpoint
from foveal.gpu.buffers import Buffers
from foveal.gpu.executable import encode
from foveal.gpu.layout import Step, lay_out
from foveal.gpu.towers.vision import VisionTower
from foveal.gpu.weights import read_weights

pytestmark = pytest.mark.gpu
GRIDS = ((28, 28), (16, 40), (2, 6))


def least_cosine(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return float(torch.nn.functional.cosine_similarity(found.float(), wanted.float(), dim=-1).min())


def test_bfloat16_is_as_near_as_transformers_own(tmp_path: Path) -> None:
    from transformers.models.qwen3_vl.configuration_qwen3_vl import Qwen3VLVisionConfig
    from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLVisionModel

    torch.manual_seed(0)
    device = torch.device("cuda", 0)
    checkpoint = open_checkpoint(QWEN3_VL_8B, dummy_weights=True)
    spec = spec_of("test", checkpoint)
    config = Qwen3VLVisionConfig(**checkpoint.config["vision_config"])
    config._attn_implementation = "sdpa"
    with device:
        model = Qwen3VLVisionModel(config).eval().requires_grad_(False)
    for name, parameter in model.named_parameters():  # livelier than the default, which leaves all tokens alike
        if parameter.dim() > 1:
            parameter.normal_(0, 1.5 / parameter[0].numel() ** 0.5 if "pos_embed" not in name else 0.5)
        elif name.endswith("bias"):
            parameter.normal_(0, 0.1)
    patches = sum(h * w for h, w in GRIDS)
    rows = torch.randint(0, 256, (patches, 3 * 16 * 16), dtype=torch.uint8, device=device)
    pixels = (rows.view(-1, 3, 1, 16, 16).float() / 127.5 - 1).expand(-1, 3, 2, 16, 16).reshape(patches, -1)
    thw = torch.tensor([[1, h, w] for h, w in GRIDS], device=device)

    def answer(dtype: torch.dtype) -> torch.Tensor:
        out = model.to(dtype)(pixels.to(dtype), thw)
        return torch.cat([out.pooler_output, *out.deepstack_features], -1).float()

    save_file({f"model.visual.{n}": t for n, t in model.state_dict().items()}, tmp_path / "model.safetensors")
    with torch.inference_mode():
        tower = VisionTower(spec, device, torch.bfloat16)
        tower.load(read_weights(tmp_path, tower.wanted(), spec.tower.names))
        step = Step(patches // 4 + 60, len(GRIDS) + 5)
        buffers = Buffers(step, tower.geometry, device, torch.bfloat16)
        buffers.rows[:patches] = rows
        buffers.place(lay_out(GRIDS, tower.geometry))
        encode(tower, buffers, step)
        wanted, theirs = answer(torch.float32), answer(torch.bfloat16)
    ours = buffers.answers.tokens[: patches // 4]
    for level in spec.levels:
        mine, own = (
            least_cosine(x[:, level.start : level.stop], wanted[:, level.start : level.stop]) for x in (ours, theirs)
        )
        print(f"{level.name}: least cosine of a token {mine:.6f}, transformers in bfloat16 {own:.6f}")
        assert mine >= 0.999
        assert mine >= own - 1e-4
