"""Qwen2-VL and Qwen2.5-VL: what config.json says of their vision towers.

Reference: transformers' Qwen2VisionTransformerPretrainedModel and Qwen2_5_VisionTransformerPretrainedModel with
Qwen2VLImageProcessor (the torchvision-backed default), 5.17 to 5.24.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from foveal.errors import ConfigurationError
from foveal.families.checkpoint import Checkpoint
from foveal.families.qwen_vl import EPSILON, IGNORED, prefixes, qwen_spec, rope_theta
from foveal.families.section import Section, vision_section
from foveal.families.spec import ModelSpec
from foveal.families.tower_plan import Merger, Names, Pool, Positions, Sources, TowerPlan

QWEN2_TYPES = ("qwen2_vl", "qwen2_vl_vision")
QWEN2_5_TYPES = ("qwen2_5_vl", "qwen2_5_vl_vision")
_DEFAULTS: dict[str, Any] = {
    "depth": 32,
    "num_heads": 16,
    "patch_size": 14,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "hidden_size": 3584,
}
_QWEN2_DEFAULTS = _DEFAULTS | {"embed_dim": 1280, "mlp_ratio": 4, "hidden_act": "quick_gelu"}
_QWEN2_5_DEFAULTS = _DEFAULTS | {
    "intermediate_size": 3420,
    "out_hidden_size": 3584,
    "hidden_act": "silu",
    "window_size": 112,
    "fullatt_block_indexes": [7, 15, 23, 31],
}
_SOURCES: Sources = {
    "patch_embed": ("patch_embed.proj",),
    "blocks.{i}.qkv": ("blocks.{i}.attn.qkv",),
    "blocks.{i}.proj": ("blocks.{i}.attn.proj",),
    "merger.norm": ("merger.ln_q",),
    "merger.fc1": ("merger.mlp.0",),
    "merger.fc2": ("merger.mlp.2",),
}
_QWEN2_SOURCES: Sources = _SOURCES | {
    "blocks.{i}.fc1": ("blocks.{i}.mlp.fc1",),
    "blocks.{i}.fc2": ("blocks.{i}.mlp.fc2",),
}
_QWEN2_5_SOURCES: Sources = _SOURCES | {
    "blocks.{i}.fc1": ("blocks.{i}.mlp.gate_proj", "blocks.{i}.mlp.up_proj"),
    "blocks.{i}.fc2": ("blocks.{i}.mlp.down_proj",),
}


def read_qwen2(name: str, checkpoint: Checkpoint) -> ModelSpec:
    """The spec of a Qwen2-VL checkpoint, whose config.json calls the language model's width hidden_size."""
    vision = vision_section(checkpoint, _QWEN2_DEFAULTS, alone="embed_dim")
    hidden = vision.integer("embed_dim")
    tower = _tower(vision, _QWEN2_SOURCES, hidden, int(hidden * vision.number("mlp_ratio")), "hidden_size")
    return qwen_spec(name, checkpoint, "qwen2_vl", tower)


def read_qwen2_5(name: str, checkpoint: Checkpoint) -> ModelSpec:
    """The spec of a Qwen2.5-VL checkpoint."""
    vision = vision_section(checkpoint, _QWEN2_5_DEFAULTS, alone="fullatt_block_indexes")
    plain = _tower(
        vision,
        _QWEN2_5_SOURCES,
        vision.integer("hidden_size"),
        vision.integer("intermediate_size"),
        "out_hidden_size",
    )
    assert plain.merger is not None
    positions = replace(
        plain.positions, window=_window(vision, plain), full_blocks=vision.indexes("fullatt_block_indexes")
    )
    merger = replace(plain.merger, norm="rms")
    tower = replace(plain, positions=positions, merger=merger, norm="rms", gated=True)
    return qwen_spec(name, checkpoint, "qwen2_5_vl", tower)


def _tower(vision: Section, sources: Sources, hidden: int, intermediate: int, width_key: str) -> TowerPlan:
    """What both have: rotation only, no bias in the patch embedding, one merger."""
    return TowerPlan(
        names=Names(prefixes(vision), sources, IGNORED),
        depth=vision.integer("depth"),
        hidden=hidden,
        heads=vision.integer("num_heads"),
        intermediate=intermediate,
        patch_size=vision.integer("patch_size"),
        patches="conv3d",
        activation=vision.activation(),
        positions=Positions(rope_theta=rope_theta(vision)),
        pool=Pool("mean"),
        temporal=vision.integer("temporal_patch_size"),
        merge_size=vision.integer("spatial_merge_size"),
        patch_bias=False,
        epsilon=EPSILON,
        merger=Merger(vision.integer(width_key)),
    )


def _window(vision: Section, tower: TowerPlan) -> int:
    """Side of a window in tokens, from pixels."""
    pixels = vision.integer("window_size")
    tokens = pixels // tower.merge_size // tower.patch_size
    if not tokens:
        raise ConfigurationError(f"{vision.where}: window_size {pixels} is smaller than a token")
    return tokens
