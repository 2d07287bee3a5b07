"""Qwen3-VL, Qwen3.5-VL (also 3.6) and Qwen3-Omni's eye, dense and MoE: what config.json says of their vision towers.

Reference: transformers' Qwen3VLVisionModel, Qwen3_5VisionModel and Qwen3OmniMoeVisionEncoder with
Qwen2VLImageProcessor (the torchvision-backed default), 5.17 to 5.24. Qwen3.5 has no deepstack; Qwen3-Omni has other
names for the mergers' tensors.
"""

from __future__ import annotations

from typing import Any

from foveal.families.checkpoint import Checkpoint
from foveal.families.qwen_vl import EPSILON, IGNORED, prefixes, qwen_spec, rope_theta
from foveal.families.section import Section, vision_section
from foveal.families.spec import ModelSpec
from foveal.families.tower_plan import Merger, Names, Pool, Positions, Sources, TowerPlan

QWEN3_TYPES = ("qwen3_vl", "qwen3_vl_moe", "qwen3_vl_vision", "qwen3_vl_moe_vision")
QWEN3_5_TYPES = ("qwen3_5", "qwen3_5_moe", "qwen3_5_vision", "qwen3_5_moe_vision")
QWEN3_OMNI_TYPES = ("qwen3_omni_moe", "qwen3_omni_moe_thinker", "qwen3_omni_moe_vision_encoder")
_QWEN3_5_DEFAULTS: dict[str, Any] = {
    "depth": 27,
    "hidden_size": 1152,
    "hidden_act": "gelu_pytorch_tanh",
    "intermediate_size": 4304,
    "num_heads": 16,
    "patch_size": 16,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "out_hidden_size": 3584,
    "num_position_embeddings": 2304,
}
_QWEN3_DEFAULTS = _QWEN3_5_DEFAULTS | {"deepstack_visual_indexes": [8, 16, 24]}
_SOURCES: Sources = {
    "patch_embed": ("patch_embed.proj",),
    "positions": ("pos_embed.weight",),
    "blocks.{i}.qkv": ("blocks.{i}.attn.qkv",),
    "blocks.{i}.proj": ("blocks.{i}.attn.proj",),
    "blocks.{i}.fc1": ("blocks.{i}.mlp.linear_fc1",),
    "blocks.{i}.fc2": ("blocks.{i}.mlp.linear_fc2",),
}
_QWEN3_SOURCES: Sources = _SOURCES | {
    "merger.norm": ("merger.norm",),
    "merger.fc1": ("merger.linear_fc1",),
    "merger.fc2": ("merger.linear_fc2",),
    "deepstack.{i}.norm": ("deepstack_merger_list.{i}.norm",),
    "deepstack.{i}.fc1": ("deepstack_merger_list.{i}.linear_fc1",),
    "deepstack.{i}.fc2": ("deepstack_merger_list.{i}.linear_fc2",),
}
_OMNI_SOURCES: Sources = _SOURCES | {
    "merger.norm": ("merger.ln_q",),
    "merger.fc1": ("merger.mlp.0",),
    "merger.fc2": ("merger.mlp.2",),
    "deepstack.{i}.norm": ("merger_list.{i}.ln_q",),
    "deepstack.{i}.fc1": ("merger_list.{i}.mlp.0",),
    "deepstack.{i}.fc2": ("merger_list.{i}.mlp.2",),
}


def read_qwen3(name: str, checkpoint: Checkpoint) -> ModelSpec:
    """The spec of a Qwen3-VL checkpoint."""
    vision = vision_section(checkpoint, _QWEN3_DEFAULTS, alone="num_position_embeddings")
    tower = _tower(vision, _QWEN3_SOURCES, vision.indexes("deepstack_visual_indexes"))
    return qwen_spec(name, checkpoint, "qwen3_vl", tower)


def read_qwen3_5(name: str, checkpoint: Checkpoint) -> ModelSpec:
    """The spec of a Qwen3.5 checkpoint; what its config.json may say of deepstack, transformers does not read."""
    vision = vision_section(checkpoint, _QWEN3_5_DEFAULTS, alone="num_position_embeddings")
    return qwen_spec(name, checkpoint, "qwen3_5", _tower(vision, _QWEN3_SOURCES, deepstack_layers=()))


def read_qwen3_omni(name: str, checkpoint: Checkpoint) -> ModelSpec:
    """The spec of a Qwen3-Omni checkpoint: only pictures are encoded, sound and speech are left out."""
    vision = vision_section(checkpoint, _QWEN3_DEFAULTS, alone="num_position_embeddings")
    tower = _tower(vision, _OMNI_SOURCES, vision.indexes("deepstack_visual_indexes"))
    return qwen_spec(name, checkpoint, "qwen3_omni", tower)


def _tower(vision: Section, sources: Sources, deepstack_layers: tuple[int, ...]) -> TowerPlan:
    return TowerPlan(
        names=Names(prefixes(vision), sources, IGNORED),
        depth=vision.integer("depth"),
        hidden=vision.integer("hidden_size"),
        heads=vision.integer("num_heads"),
        intermediate=vision.integer("intermediate_size"),
        patch_size=vision.integer("patch_size"),
        patches="conv3d",
        activation=vision.activation(),
        positions=Positions("interpolated", vision.integer("num_position_embeddings"), rope_theta=rope_theta(vision)),
        pool=Pool("mean"),
        temporal=vision.integer("temporal_patch_size"),
        merge_size=vision.integer("spatial_merge_size"),
        epsilon=EPSILON,
        merger=Merger(vision.integer("out_hidden_size"), deepstack_layers=deepstack_layers),
    )
