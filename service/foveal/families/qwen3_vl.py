"""Qwen3-VL, dense and MoE: what config.json and preprocessor_config.json say of its vision tower.

Reference: transformers' Qwen3VLVisionModel and Qwen2VLImageProcessor (the torchvision-backed default), 5.17.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from foveal.errors import ConfigurationError
from foveal.families.checkpoint import Checkpoint, dtype_of, triple
from foveal.families.smart_resize import SmartResize
from foveal.families.spec import ModelSpec
from foveal.types import Level

MODEL_TYPES = ("qwen3_vl", "qwen3_vl_moe")


def read_spec(name: str, checkpoint: Checkpoint) -> ModelSpec:
    """The spec of a Qwen3-VL checkpoint; raises ConfigurationError where its files lack something."""
    vision: dict[str, Any] = checkpoint.section("vision_config")
    processor = checkpoint.processor
    hidden = int(checkpoint.need(vision, "out_hidden_size"))
    taps: list[int] = checkpoint.need(vision, "deepstack_visual_indexes")
    names = ["main", *(f"deepstack.{i}" for i in range(len(taps)))]
    levels = tuple(Level(level, i * hidden, (i + 1) * hidden) for i, level in enumerate(names))
    patch_size, merge_size = int(checkpoint.need(vision, "patch_size")), int(vision["spatial_merge_size"])
    _agree(checkpoint.folder, processor, patch_size, merge_size)
    least, most = pixel_bounds(checkpoint)
    return ModelSpec(
        name=name,
        family="qwen3_vl",
        architecture=checkpoint.architecture,
        folder=checkpoint.folder,
        revision=checkpoint.revision,
        dummy_weights=checkpoint.dummy_weights,
        dtype=dtype_of(checkpoint),
        rule=SmartResize(patch_size, merge_size, least, most),
        patch_size=patch_size,
        merge_size=merge_size,
        width=hidden * len(levels),
        pooled_width=hidden,
        levels=levels,
        outputs=("tokens", "pooled"),
        default_output="tokens",
        row_meaning={
            "tokens": "one row per 2x2 patches for the language model: the merger's output, then each deepstack level",
            "pooled": "mean over the rows of the main level",
        },
        image_mean=triple(checkpoint, "image_mean"),
        image_std=triple(checkpoint, "image_std"),
    )


def pixel_bounds(checkpoint: Checkpoint) -> tuple[int, int]:
    """Smallest and largest area in pixels, as either generation of processor files names them."""
    processor = checkpoint.processor
    size: dict[str, int] = processor.get("size") or {}
    least = processor.get("min_pixels", size.get("shortest_edge"))
    most = processor.get("max_pixels", size.get("longest_edge"))
    if least is None or most is None:
        raise ConfigurationError(
            f"{checkpoint.folder}/preprocessor_config.json names no pixel limits (size or min_pixels, max_pixels)"
        )
    return int(least), int(most)


def _agree(folder: Path, processor: dict[str, Any], patch_size: int, merge_size: int) -> None:
    """Refuse a processor file that cuts other patches than the tower takes."""
    found = processor.get("patch_size", patch_size), processor.get("merge_size", merge_size)
    if found != (patch_size, merge_size):
        raise ConfigurationError(
            f"{folder}: preprocessor_config.json has patch and merge size {found}, config.json "
            f"({patch_size}, {merge_size}); these files are not of one model"
        )
