"""DINOv2, with and without registers: what config.json and the image processor's file say of it.

Reference: transformers' Dinov2Model and Dinov2WithRegistersModel with BitImageProcessor (the torchvision-backed
default), 5.17 to 5.24. The Pillow-backed processor differs by up to 2 levels. Positions are brought from the size of
training to the processor's: with registers by an antialiased interpolation, without them by a plain one, whatever
`interpolate_antialias` says (transformers does not read it).
"""

from __future__ import annotations

from typing import Any

from foveal.families.checkpoint import Checkpoint
from foveal.families.making import grid_of, make_spec
from foveal.families.processor import fixed_rule, processor_class
from foveal.families.section import Section, vision_section
from foveal.families.spec import ModelSpec
from foveal.families.tower_plan import Names, Pool, Positions, Sources, TowerPlan
from foveal.types import OutputKind

PLAIN_TYPE, REGISTERS_TYPE = "dinov2", "dinov2_with_registers"
MODEL_TYPES = (PLAIN_TYPE, REGISTERS_TYPE)
_PREFIXES = ("dinov2.", "dinov2_with_registers.", "")
"""Of a tower under a classifier; of a tower alone."""
_IGNORED = ("mask_token",)
_DEFAULTS: dict[str, Any] = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "mlp_ratio": 4,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-6,
    "image_size": 224,
    "qkv_bias": True,
    "use_swiglu_ffn": False,
}
_PLAIN_DEFAULTS = _DEFAULTS | {"patch_size": 14}
_REGISTERS_DEFAULTS = _DEFAULTS | {"patch_size": 16, "num_register_tokens": 4}
_SOURCES: Sources = {
    "patch_embed": ("embeddings.patch_embeddings.projection",),
    "positions": ("embeddings.position_embeddings",),
    "blocks.{i}.norm1": ("encoder.layer.{i}.norm1",),
    "blocks.{i}.qkv": tuple(f"encoder.layer.{{i}}.attention.attention.{part}" for part in ("query", "key", "value")),
    "blocks.{i}.proj": ("encoder.layer.{i}.attention.output.dense",),
    "blocks.{i}.scale1": ("encoder.layer.{i}.layer_scale1.lambda1",),
    "blocks.{i}.norm2": ("encoder.layer.{i}.norm2",),
    "blocks.{i}.scale2": ("encoder.layer.{i}.layer_scale2.lambda1",),
    "final_norm": ("layernorm",),
}
_PLAIN_MLP: Sources = {
    "blocks.{i}.fc1": ("encoder.layer.{i}.mlp.fc1",),
    "blocks.{i}.fc2": ("encoder.layer.{i}.mlp.fc2",),
}
_GATED_MLP: Sources = {
    "blocks.{i}.fc1": ("encoder.layer.{i}.mlp.weights_in",),
    "blocks.{i}.fc2": ("encoder.layer.{i}.mlp.weights_out",),
}
_CLASS, _REGISTERS = "embeddings.cls_token", "embeddings.register_tokens"


def read_spec(name: str, checkpoint: Checkpoint) -> ModelSpec:
    """The spec of a DINOv2 checkpoint; raises ConfigurationError where its files lack something or disagree."""
    has_registers = checkpoint.config.get("model_type") == REGISTERS_TYPE
    defaults = _REGISTERS_DEFAULTS if has_registers else _PLAIN_DEFAULTS
    vision = vision_section(checkpoint, defaults, alone="model_type")
    registers = vision.integer("num_register_tokens") if has_registers else 0
    patch_size = vision.integer("patch_size")
    rule = fixed_rule(checkpoint, processor_class(checkpoint, ("Bit", "ViT", "CLIP")), patch_size, 1 + registers)
    tower = _tower(vision, registers, grid_of(rule, patch_size))
    between = f", {registers} registers" if registers else ""
    meaning: dict[OutputKind, str] = {
        "tokens": f"the class row{between}, then one row per patch, after the last norm",
        "pooled": "the class row after the last norm",
    }
    return make_spec(name, checkpoint, "dinov2", rule, tower, "pooled", meaning)


def _tower(vision: Section, registers: int, grid: tuple[int, int]) -> TowerPlan:
    patch_size, hidden = vision.integer("patch_size"), vision.integer("hidden_size")
    trained = vision.integer("image_size") // patch_size
    gated = vision.flag("use_swiglu_ffn")
    inner = int(hidden * vision.number("mlp_ratio"))
    prefix = (_CLASS, _REGISTERS) if registers else (_CLASS,)
    return TowerPlan(
        names=Names(_PREFIXES, _SOURCES | (_GATED_MLP if gated else _PLAIN_MLP) | {"prefix": prefix}, _IGNORED),
        depth=vision.integer("num_hidden_layers"),
        hidden=hidden,
        heads=vision.integer("num_attention_heads"),
        # a gated MLP keeps two thirds of the columns, rounded up to a multiple of 8
        intermediate=(int(inner * 2 / 3) + 7) // 8 * 8 if gated else inner,
        patch_size=patch_size,
        patches="conv2d",
        activation="silu" if gated else vision.activation(),
        positions=Positions("fixed", 1 + trained**2, antialias=registers > 0),
        pool=Pool("class"),
        qkv_bias=vision.flag("qkv_bias"),
        epsilon=vision.number("layer_norm_eps"),
        gated=gated,
        layer_scale=True,
        prefix_rows=1 + registers,
        fixed_grid=grid,
        final_norm=True,
    )
