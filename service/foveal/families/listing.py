"""What is served, for people: a line for each family. `foveal models` and the documentation show it."""

from __future__ import annotations

from dataclasses import dataclass

from foveal.families import clip, dinov2, qwen2_vl, qwen3_vl, siglip, siglip2_naflex

_TOWER = "tokens and pooled rows with random weights"
_PICTURES = "resized pictures bit for bit"


@dataclass(frozen=True)
class FamilyInfo:
    """One family."""

    name: str
    model_types: tuple[str, ...]
    """As in config.json."""
    models: str
    """Published checkpoints that belong to it."""
    outputs: str
    """What `output` gives; the default first."""
    reference: str
    """Classes of transformers that it follows: model, then image processor."""
    checked: str
    """What was compared with them."""
    builtins: tuple[str, ...]
    """Small models of this family that need no download."""


LISTING = (
    FamilyInfo(
        "qwen2_vl",
        qwen2_vl.QWEN2_TYPES,
        "Qwen2-VL 2B, 7B, 72B",
        "tokens for the language model; pooled: their mean",
        "Qwen2VisionTransformerPretrainedModel, Qwen2VLImageProcessor",
        f"{_TOWER}; {_PICTURES}",
        ("builtin:tiny-qwen2-vl",),
    ),
    FamilyInfo(
        "qwen2_5_vl",
        qwen2_vl.QWEN2_5_TYPES,
        "Qwen2.5-VL 3B, 7B, 32B, 72B",
        "tokens for the language model; pooled: their mean",
        "Qwen2_5_VisionTransformerPretrainedModel, Qwen2VLImageProcessor",
        f"{_TOWER}; {_PICTURES}",
        ("builtin:tiny-qwen2.5-vl",),
    ),
    FamilyInfo(
        "qwen3_vl",
        qwen3_vl.QWEN3_TYPES,
        "Qwen3-VL 2B to 32B, 30B-A3B, 235B-A22B",
        "tokens for the language model with deepstack levels; pooled: mean of the main level",
        "Qwen3VLVisionModel, Qwen2VLImageProcessor",
        f"{_TOWER}; {_PICTURES}",
        ("builtin:tiny",),
    ),
    FamilyInfo(
        "qwen3_5",
        qwen3_vl.QWEN3_5_TYPES,
        "Qwen3.5 and Qwen3.6, dense and MoE",
        "tokens for the language model; pooled: their mean",
        "Qwen3_5VisionModel, Qwen2VLImageProcessor",
        f"{_TOWER}; pictures are prepared as for qwen3_vl",
        ("builtin:tiny-qwen3.5",),
    ),
    FamilyInfo(
        "qwen3_omni",
        qwen3_vl.QWEN3_OMNI_TYPES,
        "Qwen3-Omni 30B-A3B, pictures only",
        "tokens for the language model with deepstack levels; pooled: mean of the main level",
        "Qwen3OmniMoeVisionEncoder, Qwen2VLImageProcessor",
        f"{_TOWER}; pictures are prepared as for qwen3_vl",
        ("builtin:tiny-qwen3-omni",),
    ),
    FamilyInfo(
        "siglip",
        siglip.MODEL_TYPES,
        "SigLIP base to so400m; SigLIP 2 of fixed size, base to giant",
        "pooled: attention pool; tokens: a row per patch",
        "SiglipVisionModel, SiglipImageProcessor",
        f"{_TOWER}; {_PICTURES}",
        ("builtin:tiny-siglip",),
    ),
    FamilyInfo(
        "siglip2_naflex",
        siglip2_naflex.MODEL_TYPES,
        "SigLIP 2 NaFlex, base and so400m",
        "pooled: attention pool; tokens: a row per patch",
        "Siglip2VisionModel, Siglip2ImageProcessor",
        f"{_TOWER}; {_PICTURES}",
        ("builtin:tiny-naflex",),
    ),
    FamilyInfo(
        "clip",
        clip.MODEL_TYPES,
        "CLIP ViT-B and ViT-L of OpenAI, LAION and others in transformers' format",
        "pooled: image_embeds; tokens: class row and a row per patch",
        "CLIPVisionModelWithProjection, CLIPImageProcessor",
        f"{_TOWER}; {_PICTURES}",
        ("builtin:tiny-clip",),
    ),
    FamilyInfo(
        "dinov2",
        dinov2.MODEL_TYPES,
        "DINOv2 small to giant, with and without registers",
        "pooled: class row; tokens: class row, registers, a row per patch",
        "Dinov2Model and Dinov2WithRegistersModel, BitImageProcessor",
        f"{_TOWER}; {_PICTURES}",
        ("builtin:tiny-dinov2", "builtin:tiny-dinov2-registers"),
    ),
)
