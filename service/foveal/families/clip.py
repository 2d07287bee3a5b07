"""CLIP: what config.json and the image processor's file say of its vision tower.

Reference: transformers' CLIPVisionModelWithProjection and CLIPImageProcessor (the torchvision-backed default), 5.17 to
5.24. The Pillow-backed processor differs by up to 2 levels. A checkpoint's pooled row is `image_embeds`, before any
normalising; without a projection (CLIPVisionModel) it is `pooler_output`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from foveal.errors import ConfigurationError
from foveal.families.checkpoint import Checkpoint
from foveal.families.making import make_spec, same_grid
from foveal.families.processor import fixed_rule, processor_class
from foveal.families.section import Section, vision_section
from foveal.families.spec import ModelSpec
from foveal.families.tower_plan import Names, Pool, Positions, Sources, TowerPlan
from foveal.types import OutputKind

MODEL_TYPES = ("clip", "clip_vision_model")
PREFIXES = ("vision_model.", "")
"""Of a file that holds the text model too, or of older files; of a tower alone in newer ones."""
IGNORED = ("position_ids",)
_PROJECTED = ("CLIPModel", "CLIPVisionModelWithProjection")
_DEFAULTS: dict[str, Any] = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "projection_dim": 512,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "image_size": 224,
    "patch_size": 32,
    "hidden_act": "quick_gelu",
    "layer_norm_eps": 1e-5,
}
ENCODER_SOURCES: Sources = {
    "patch_embed": ("embeddings.patch_embedding",),
    "positions": ("embeddings.position_embedding.weight",),
    "blocks.{i}.norm1": ("encoder.layers.{i}.layer_norm1",),
    "blocks.{i}.qkv": tuple(f"encoder.layers.{{i}}.self_attn.{part}_proj" for part in "qkv"),
    "blocks.{i}.proj": ("encoder.layers.{i}.self_attn.out_proj",),
    "blocks.{i}.norm2": ("encoder.layers.{i}.layer_norm2",),
    "blocks.{i}.fc1": ("encoder.layers.{i}.mlp.fc1",),
    "blocks.{i}.fc2": ("encoder.layers.{i}.mlp.fc2",),
}
"""Names that SigLIP has taken over."""
_SOURCES: Sources = ENCODER_SOURCES | {
    "prefix": ("embeddings.class_embedding",),
    "pre_norm": ("pre_layrnorm",),  # spelt so in the files
    "pool.norm": ("post_layernorm",),
    "pool.projection": ("/visual_projection",),
}


def read_spec(name: str, checkpoint: Checkpoint) -> ModelSpec:
    """The spec of a CLIP checkpoint; raises ConfigurationError where its files lack something or disagree."""
    checkpoint = _with_older_section(checkpoint)
    vision = vision_section(checkpoint, _DEFAULTS, alone="num_hidden_layers")
    patch_size, image_size = vision.integer("patch_size"), vision.integer("image_size")
    rule = fixed_rule(checkpoint, processor_class(checkpoint, ("CLIP", "ViT", "Siglip", "Bit")), patch_size, 1)
    grid = same_grid(checkpoint, rule, image_size, patch_size)
    projection = _projection(checkpoint, vision)
    tower = TowerPlan(
        names=Names(PREFIXES, _SOURCES, IGNORED),
        depth=vision.integer("num_hidden_layers"),
        hidden=vision.integer("hidden_size"),
        heads=vision.integer("num_attention_heads"),
        intermediate=vision.integer("intermediate_size"),
        patch_size=patch_size,
        patches="conv2d",
        activation=vision.activation(),
        positions=Positions("fixed", 1 + grid[0] * grid[1]),
        pool=Pool("class", norms=True, projection=projection),
        patch_bias=False,
        epsilon=vision.number("layer_norm_eps"),
        prefix_rows=1,
        fixed_grid=grid,
        pre_norm=True,
    )
    pooled = "the class row after the last norm" + (", projected, not normalised" if projection else "")
    meaning: dict[OutputKind, str] = {
        "tokens": "the class row, then one row per patch, before the last norm",
        "pooled": pooled,
    }
    return make_spec(name, checkpoint, "clip", rule, tower, "pooled", meaning)


def _with_older_section(checkpoint: Checkpoint) -> Checkpoint:
    """First files have `vision_config_dict`: where there is one it wins, also with its class's defaults."""
    older = checkpoint.config.get("vision_config_dict")
    if older is None:
        return checkpoint
    newer = checkpoint.config.get("vision_config") or {}
    if not isinstance(older, dict) or not isinstance(newer, dict):
        raise ConfigurationError(f"{checkpoint.folder}/config.json: vision_config_dict is no JSON object")
    rest = {key: value for key, value in newer.items() if key not in (*_DEFAULTS, "num_channels")}
    return replace(checkpoint, config=checkpoint.config | {"vision_config": rest | older})


def _projection(checkpoint: Checkpoint, vision: Section) -> int:
    """Columns of the projection; 0 for a checkpoint that has none, as its class tells."""
    is_whole = vision.values is not checkpoint.config
    named = checkpoint.architecture
    if named not in (*_PROJECTED, "unknown") or (named == "unknown" and not is_whole):
        return 0
    owner = checkpoint.config if named != "CLIPVisionModelWithProjection" else vision.values
    return Section(vision.where, owner, _DEFAULTS).integer("projection_dim")
