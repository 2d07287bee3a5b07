"""SigLIP 2 NaFlex: what config.json and the image processor's file say of its vision tower.

Reference: transformers' Siglip2VisionModel and Siglip2ImageProcessor (the torchvision-backed default), 5.17 to 5.24,
without the padding to `max_num_patches`: a picture has as many rows as it has patches. The Pillow-backed processor
differs by 1 level.
"""

from __future__ import annotations

from foveal.errors import ConfigurationError
from foveal.families.checkpoint import Checkpoint
from foveal.families.making import make_spec
from foveal.families.naflex import NaFlex
from foveal.families.processor import interpolation, max_patches, needs_resize, processor_class
from foveal.families.section import vision_section
from foveal.families.siglip import DEFAULTS, siglip_meaning, siglip_tower
from foveal.families.spec import ModelSpec
from foveal.families.tower_plan import Positions

MODEL_TYPES = ("siglip2", "siglip2_vision_model")


def read_spec(name: str, checkpoint: Checkpoint) -> ModelSpec:
    """The spec of a NaFlex checkpoint; raises ConfigurationError where its files lack something or disagree."""
    vision = vision_section(checkpoint, DEFAULTS | {"num_patches": 256}, alone="num_hidden_layers")
    processor_class(checkpoint, ("Siglip2",))
    needs_resize(checkpoint)
    patch_size = vision.integer("patch_size")
    if checkpoint.processor.get("patch_size") != patch_size:
        raise ConfigurationError(
            f"{checkpoint.folder}: {checkpoint.processor_file} has patch size "
            f"{checkpoint.processor.get('patch_size')}, config.json {patch_size}; these files are not of one model"
        )
    rule = NaFlex(patch_size, max_patches(checkpoint), interpolation(checkpoint))
    tower = siglip_tower(vision, Positions("antialiased", vision.integer("num_patches")), None)
    return make_spec(name, checkpoint, "siglip2_naflex", rule, tower, "pooled", siglip_meaning(tower))
