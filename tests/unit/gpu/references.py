"""transformers' own vision models, tiny and lively, one case for each kind of tower; what a new family adds is a case.

A case writes a checkpoint folder, and says what transformers answers for uint8 patch rows.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn
from transformers import (
    CLIPVisionConfig,
    CLIPVisionModelWithProjection,
    Dinov2Config,
    Dinov2Model,
    Dinov2WithRegistersConfig,
    Dinov2WithRegistersModel,
    Siglip2VisionConfig,
    Siglip2VisionModel,
    SiglipVisionConfig,
    SiglipVisionModel,
)
from transformers.models.qwen2_5_vl.configuration_qwen2_5_vl import Qwen2_5_VLVisionConfig
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VisionTransformerPretrainedModel
from transformers.models.qwen2_vl.configuration_qwen2_vl import Qwen2VLVisionConfig
from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VisionTransformerPretrainedModel
from transformers.models.qwen3_5.configuration_qwen3_5 import Qwen3_5VisionConfig
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5VisionModel
from transformers.models.qwen3_omni_moe.configuration_qwen3_omni_moe import Qwen3OmniMoeVisionEncoderConfig
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import Qwen3OmniMoeVisionEncoder
from transformers.models.qwen3_vl.configuration_qwen3_vl import Qwen3VLVisionConfig
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLVisionModel

from foveal.gpu.dummy import draw
from tests.unit.gpu.bench import Picture

MEAN, STD = [0.48, 0.45, 0.40], [0.27, 0.26, 0.28]
PATCH = 4
CONSTANTS = {"image_mean": MEAN, "image_std": STD, "do_rescale": True, "rescale_factor": 1 / 255, "do_normalize": True}
RESIZED = {**CONSTANTS, "do_resize": True, "resample": 3}
QWEN = {**RESIZED, "size": {"shortest_edge": 64, "longest_edge": 1 << 20}, "patch_size": PATCH, "merge_size": 2}
SQUARE = {**RESIZED, "size": {"height": 32, "width": 32}}
CROPPED = {**RESIZED, "size": {"shortest_edge": 32}, "do_center_crop": True, "crop_size": {"height": 32, "width": 32}}
SMALL = {"hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3, "num_attention_heads": 3}
BLOCKS = {"depth": 4, "hidden_size": 48, "num_heads": 3, "patch_size": PATCH, "in_channels": 3}
QWEN3 = {**BLOCKS, "intermediate_size": 80, "out_hidden_size": 40, "num_position_embeddings": 49}
VARIED = ((8, 8), (24, 2), (2, 28), (2, 2), (14, 10), (4, 34))
"""Heights and widths in patches: square, tall, wide, smallest, finer than the table, long."""


@dataclass(frozen=True)
class Answer:
    """What transformers gives for one picture, float32: [tokens, width] and [pooled width]."""

    tokens: torch.Tensor
    pooled: torch.Tensor


@dataclass(frozen=True)
class Case:
    """One family in one shape."""

    name: str
    processor: dict[str, Any]
    make: Callable[[], Any]
    answer: Callable[[Any, Picture], Answer]
    config: dict[str, Any] | None = None
    """config.json; None: the one that transformers writes."""
    prefix: str = ""
    """Of the tensors in the file, where `config` is given."""
    grids: tuple[tuple[int, int], ...] = VARIED

    def write(self, folder: Path) -> Any:
        """Make the folder; the model, whose weights leave nothing idle."""
        model: nn.Module = self.make().eval().requires_grad_(False)
        names = {name: t for name, t in model.state_dict().items() if t.is_floating_point()}
        model.load_state_dict({name: draw(f"reference {name}", t.shape) for name, t in names.items()}, strict=False)
        if self.config is None:
            model.save_pretrained(folder)  # type: ignore[operator]
        else:
            folder.mkdir(exist_ok=True)
            save_file({self.prefix + n: t for n, t in model.state_dict().items()}, folder / "model.safetensors")
            (folder / "config.json").write_text(json.dumps({"architectures": ["X"], "dtype": "float32"} | self.config))
        (folder / "preprocessor_config.json").write_text(json.dumps(self.processor))
        return model


def _normalised(shown: Picture) -> torch.Tensor:
    """Float32 [patches, 3, patch, patch]."""
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (MEAN, STD))
    return (torch.from_numpy(shown.rows).view(-1, 3, PATCH, PATCH).float() / 255 - mean) / std


def _image(shown: Picture) -> torch.Tensor:
    """Float32 [1, 3, height, width]."""
    patches = _normalised(shown).view(shown.height, shown.width, 3, PATCH, PATCH)
    return patches.permute(2, 0, 3, 1, 4).reshape(1, 3, shown.height * PATCH, shown.width * PATCH)


def _qwen(model: Any, shown: Picture) -> Answer:
    pixels = _normalised(shown)[:, :, None].expand(-1, 3, 2, PATCH, PATCH).reshape(len(shown.rows), -1)
    found = model(pixels, torch.tensor([[1, shown.height, shown.width]]))
    levels = [found.pooler_output, *(getattr(found, "deepstack_features", None) or [])]
    return Answer(torch.cat(levels, dim=1), found.pooler_output.mean(0))


def _image_model(model: Any, shown: Picture) -> Answer:
    found = model(_image(shown))
    rows = found.last_hidden_state[0]
    pooled = found.image_embeds if hasattr(found, "image_embeds") else found.pooler_output
    return Answer(rows, rows[0] if pooled is None else pooled[0])


def _naflex(model: Any, shown: Picture) -> Answer:
    pixels = _normalised(shown).permute(0, 2, 3, 1).reshape(1, len(shown.rows), -1)
    mask = torch.ones((1, len(shown.rows)), dtype=torch.int64)
    found = model(pixels, mask, torch.tensor([[shown.height, shown.width]]))
    return Answer(found.last_hidden_state[0], found.pooler_output[0])


def _fixed(name: str, processor: dict[str, Any], make: Callable[[], Any]) -> Case:
    return Case(name, processor, make, _image_model, grids=((8, 8),))


def _qwen_case(name: str, kind: type[Any], config: Any, section: dict[str, Any], prefix: str = "model.visual.") -> Case:
    def make() -> Any:
        # configs take most of what a file may hold and ignore the rest
        return kind(config(**section))

    nested = {"vision_config": section}
    whole = {"thinker_config": nested} if prefix.startswith("thinker") else nested
    return Case(name, QWEN, make, _qwen, {"model_type": name, **whole}, prefix)


QWEN2 = {"depth": 4, "embed_dim": 48, "hidden_size": 40, "mlp_ratio": 2, "num_heads": 3, "patch_size": PATCH}
QWEN2 |= {"in_channels": 3, "spatial_merge_size": 2, "temporal_patch_size": 2, "hidden_act": "quick_gelu"}
QWEN2_5 = {**BLOCKS, "intermediate_size": 76, "out_hidden_size": 40, "hidden_act": "silu", "window_size": 24}
QWEN2_5 |= {"fullatt_block_indexes": [1, 3], "spatial_merge_size": 2, "temporal_patch_size": 2}
QWEN3 |= {"hidden_act": "gelu_pytorch_tanh", "spatial_merge_size": 2, "temporal_patch_size": 2}
DEEP = {**QWEN3, "deepstack_visual_indexes": [0, 2]}
CASES = (
    _qwen_case("qwen2_vl", Qwen2VisionTransformerPretrainedModel, Qwen2VLVisionConfig, QWEN2, "visual."),
    _qwen_case("qwen2_5_vl", Qwen2_5_VisionTransformerPretrainedModel, Qwen2_5_VLVisionConfig, QWEN2_5, "visual."),
    _qwen_case("qwen3_vl", Qwen3VLVisionModel, Qwen3VLVisionConfig, DEEP),
    _qwen_case("qwen3_5", Qwen3_5VisionModel, Qwen3_5VisionConfig, QWEN3),
    _qwen_case("qwen3_omni_moe", Qwen3OmniMoeVisionEncoder, Qwen3OmniMoeVisionEncoderConfig, DEEP, "thinker.visual."),
    _fixed("siglip", SQUARE, lambda: SiglipVisionModel(SiglipVisionConfig(**SMALL, image_size=32, patch_size=PATCH))),
    Case(
        "siglip2_naflex",
        {**RESIZED, "resample": 2, "patch_size": PATCH, "max_num_patches": 400},
        lambda: Siglip2VisionModel(Siglip2VisionConfig(**SMALL, num_patches=49, patch_size=PATCH)),
        _naflex,
        grids=(*VARIED, (1, 1), (9, 3), (7, 7)),
    ),
    _fixed(
        "clip",
        CROPPED,
        lambda: CLIPVisionModelWithProjection(
            CLIPVisionConfig(**SMALL, image_size=32, patch_size=PATCH, projection_dim=20, hidden_act="quick_gelu")
        ),
    ),
    _fixed("dinov2", CROPPED, lambda: Dinov2Model(Dinov2Config(**SMALL, mlp_ratio=2, image_size=56, patch_size=PATCH))),
    _fixed(
        "dinov2_swiglu",
        CROPPED,
        lambda: Dinov2Model(Dinov2Config(**SMALL, image_size=32, patch_size=PATCH, use_swiglu_ffn=True)),
    ),
    _fixed(
        "dinov2_registers",
        CROPPED,
        lambda: Dinov2WithRegistersModel(
            Dinov2WithRegistersConfig(**SMALL, image_size=56, patch_size=PATCH, num_register_tokens=4)
        ),
    ),
)
