"""Random weights for demos, tests and benchmarks: any config gets a lively tower without a download.

Every tensor depends on its name alone, and on no machine: uniform numbers of torch's CPU generator are exact
multiples of 2^-24, scaled by one multiplication and one subtraction in float32. (Normal ones go through
logarithms and cosines, which differ between processors in the last bit.)
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping

import torch

UNIT_BOUND = math.sqrt(3.0)
"""Uniform numbers within it have a standard deviation of one."""
ATTENTION_GAIN = 1.6
"""Enough that attention prefers some patches to others."""
GAIN = 1.1


def dummy_weights(wanted: Mapping[str, torch.Size]) -> dict[str, torch.Tensor]:
    """A float32 tensor for each name."""
    return {name: draw(name, shape) for name, shape in wanted.items()}


def draw(name: str, shape: torch.Size) -> torch.Tensor:
    """One tensor, sized by its part: no idle bias, no unit norm, and activations that neither die nor explode."""
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:7], "little")
    bound = UNIT_BOUND * _deviation(name, shape)
    values = torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float32)
    values.mul_(2 * bound).sub_(bound)
    is_factor = len(shape) == 1 and name.endswith(("weight", "scale1", "scale2"))
    return values.add_(1.0) if is_factor else values


def _deviation(name: str, shape: torch.Size) -> float:
    if len(shape) == 1:
        return 0.2 if name.endswith(("weight", "scale1", "scale2")) else 0.1
    if name in ("positions", "prefix", "pool.probe"):
        return 0.5
    fan_in = math.prod(shape[1:])
    return (ATTENTION_GAIN if "qkv" in name else GAIN) / math.sqrt(fan_in)
