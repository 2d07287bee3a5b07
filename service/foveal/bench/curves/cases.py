"""What is measured: a model and the pictures that are sent to it."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass

from PIL import Image

from foveal.bench.serve import pictures
from foveal.bench.shape import QWEN3_VL_8B, SHAPES
from foveal.errors import ConfigurationError
from foveal.families.spec import ModelSpec
from foveal.types import PixelPlan

PICTURES = 64
"""Made before the run; every request shows one of them in bytes that were never sent before."""


@dataclass(frozen=True)
class Case:
    """`size` None: the mixture of a chat service."""

    name: str
    model: str
    size: tuple[int, int] | None

    def pictures(self, seed: int) -> list[bytes]:
        """JPEG files."""
        if self.size is None:
            return pictures.of_mixture(PICTURES, seed)
        return pictures.of_sizes([self.size] * PICTURES, seed)


CASES = {
    case.name: case
    for case in (
        Case("siglip2-base-256", str(SHAPES / "siglip2_base_256"), (256, 256)),
        Case("qwen3-vl-2b-448", str(SHAPES / "qwen3_vl_2b"), (448, 448)),
        Case("qwen3-vl-8b-mixture", str(QWEN3_VL_8B), None),
    )
}
"""Of a GPU; each asks for its model's default output: pooled, tokens, tokens."""


def own_case(model: str, sizes: Sequence[str] | None) -> Case:
    """A model of the caller's; raises ConfigurationError for more than one size."""
    if sizes is not None and len(sizes) != 1:
        raise ConfigurationError("--size: one size, or none for the mixture")
    name = re.sub(r"[^\w.-]+", "-", model).strip("-")  # of log files too
    return Case(name, model, pictures.parse_size(sizes[0]) if sizes else None)


def plans_of(made: Sequence[bytes], spec: ModelSpec) -> list[PixelPlan]:
    """What the service makes of each picture."""
    plans = []
    for picture in made:
        with Image.open(io.BytesIO(picture)) as image:
            plans.append(spec.rule.plan(*image.size))
    return plans
