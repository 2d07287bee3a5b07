"""SigLIP, and SigLIP 2 of fixed size, which has the same classes: what their files say of the vision tower.

Reference: transformers' SiglipVisionModel and SiglipImageProcessor (the torchvision-backed default), 5.17 to 5.24. The
Pillow-backed processor differs by 1 level. Pictures that are not RGB, which these processors refuse or misread where
the file says `do_convert_rgb: null`, are converted first, like everyone's.
"""

from __future__ import annotations

from typing import Any

from foveal.families.checkpoint import Checkpoint
from foveal.families.clip import ENCODER_SOURCES, IGNORED, PREFIXES
from foveal.families.making import make_spec, same_grid
from foveal.families.processor import fixed_rule, processor_class
from foveal.families.section import Section, vision_section
from foveal.families.spec import ModelSpec
from foveal.families.tower_plan import Names, Pool, Positions, Sources, TowerPlan
from foveal.types import OutputKind

MODEL_TYPES = ("siglip", "siglip_vision_model")
DEFAULTS: dict[str, Any] = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "patch_size": 16,
    "hidden_act": "gelu_pytorch_tanh",
    "layer_norm_eps": 1e-6,
    "vision_use_head": True,
}
"""Shared with NaFlex."""
_SOURCES: Sources = ENCODER_SOURCES | {
    "final_norm": ("post_layernorm",),
    "pool.probe": ("head.probe",),
    "pool.qkv.weight": ("head.attention.in_proj_weight",),
    "pool.qkv.bias": ("head.attention.in_proj_bias",),
    "pool.proj": ("head.attention.out_proj",),
    "pool.norm": ("head.layernorm",),
    "pool.fc1": ("head.mlp.fc1",),
    "pool.fc2": ("head.mlp.fc2",),
}


def read_spec(name: str, checkpoint: Checkpoint) -> ModelSpec:
    """The spec of a SigLIP checkpoint; raises ConfigurationError where its files lack something or disagree."""
    vision = vision_section(checkpoint, DEFAULTS | {"image_size": 224}, alone="num_hidden_layers")
    patch_size, image_size = vision.integer("patch_size"), vision.integer("image_size")
    rule = fixed_rule(checkpoint, processor_class(checkpoint, ("Siglip", "ViT", "CLIP", "Bit")), patch_size, 0)
    grid = same_grid(checkpoint, rule, image_size, patch_size)
    tower = siglip_tower(vision, Positions("fixed", grid[0] * grid[1]), grid)
    return make_spec(name, checkpoint, "siglip", rule, tower, "pooled", siglip_meaning(tower))


def siglip_tower(vision: Section, positions: Positions, grid: tuple[int, int] | None) -> TowerPlan:
    """The tower of either kind: one of fixed size convolves, one of any size has a matrix for flat patches."""
    has_head = vision.flag("vision_use_head")
    return TowerPlan(
        names=Names(PREFIXES, _SOURCES, IGNORED),
        depth=vision.integer("num_hidden_layers"),
        hidden=vision.integer("hidden_size"),
        heads=vision.integer("num_attention_heads"),
        intermediate=vision.integer("intermediate_size"),
        patch_size=vision.integer("patch_size"),
        patches="conv2d" if grid else "linear",
        activation=vision.activation(),
        positions=positions,
        pool=Pool("attention" if has_head else "mean"),
        epsilon=vision.number("layer_norm_eps"),
        fixed_grid=grid,
        final_norm=True,
    )


def siglip_meaning(tower: TowerPlan) -> dict[OutputKind, str]:
    """What the rows are, with or without the attention pool."""
    has_head = tower.pool.kind == "attention"
    pooled = "the attention pool over all rows, not normalised" if has_head else "mean over the rows"
    return {"tokens": "one row per patch, after the last norm", "pooled": pooled}
