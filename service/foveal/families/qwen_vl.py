"""What the vision towers of the Qwen-VL line share: rule, limits, merger, and what their rows mean.

Pictures are prepared as by transformers' Qwen2VLImageProcessor (the torchvision-backed default, 5.17 to 5.24): a smart
resize, antialiased bicubic on bytes. Its Pillow-backed twin differs by up to 16 levels at edges of text.
"""

from __future__ import annotations

from foveal.errors import ConfigurationError
from foveal.families.checkpoint import Checkpoint
from foveal.families.making import make_spec
from foveal.families.processor import interpolation, needs_resize, pixel_bounds, processor_class
from foveal.families.section import Section
from foveal.families.smart_resize import SmartResize
from foveal.families.spec import ModelSpec
from foveal.families.tower_plan import TowerPlan
from foveal.types import OutputKind

PREFIXES = ("model.visual.", "visual.", "thinker.visual.")
"""Of a file that holds the language model too; newer files have the first, Qwen3-Omni's the last."""
ALONE = ""
"""Of a file with the tower alone."""
IGNORED = ("rotary_pos_emb.inv_freq",)
"""Constants that some files carry although config.json decides them."""
ROPE_THETA = 10000.0
"""Where config.json says nothing: all published checkpoints."""
EPSILON = 1e-6
"""Fixed in transformers' classes."""


def prefixes(vision: Section) -> tuple[str, ...]:
    """Names of a tower alone begin with nothing; elsewhere that would match the language model."""
    return PREFIXES if vision.where.endswith("vision_config") else (*PREFIXES, ALONE)


def rope_theta(vision: Section) -> float:
    """Base of the rotation; raises ConfigurationError for a kind other than the plain one along both axes."""
    rope = vision.values.get("rope_parameters") or {}
    if rope.get("rope_type", "axial") not in ("axial", "default"):
        raise ConfigurationError(f"{vision.where} has rope_type {rope['rope_type']!r}; served is 'axial'")
    return Section(f"{vision.where}, rope_parameters", rope, {"rope_theta": ROPE_THETA}).number("rope_theta")


def qwen_spec(name: str, checkpoint: Checkpoint, family: str, tower: TowerPlan) -> ModelSpec:
    """The spec of a Qwen-VL checkpoint; raises ConfigurationError where its files lack something or disagree."""
    processor_class(checkpoint, ("Qwen2VL", "Qwen2_5_VL", "Qwen3VL"))
    needs_resize(checkpoint)
    _agree(checkpoint, tower.patch_size, tower.merge_size)
    rule = SmartResize(
        tower.patch_size, tower.merge_size, *pixel_bounds(checkpoint), interpolation(checkpoint, "bicubic")
    )
    return make_spec(name, checkpoint, family, rule, tower, "tokens", _meaning(tower))


def _meaning(tower: TowerPlan) -> dict[OutputKind, str]:
    side = tower.merge_size
    levels = (
        ": the merger's output, then each deepstack level" if tower.merger and tower.merger.deepstack_layers else ""
    )
    main = " of the main level" if levels else ""
    return {
        "tokens": f"one row per {side}x{side} patches for the language model{levels}",
        "pooled": f"mean over the rows{main}",
    }


def _agree(checkpoint: Checkpoint, patch_size: int, merge_size: int) -> None:
    """Refuse a processor file that cuts other patches than the tower takes."""
    processor = checkpoint.processor
    found = processor.get("patch_size") or patch_size, processor.get("merge_size") or merge_size
    if found != (patch_size, merge_size):
        raise ConfigurationError(
            f"{checkpoint.folder}: {checkpoint.processor_file} has patch and merge size {found}, config.json "
            f"({patch_size}, {merge_size}); these files are not of one model"
        )
