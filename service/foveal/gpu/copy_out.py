"""From the rows of a finished forward to the bytes that callers get: cut, pooled, rounded, checked, written."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from foveal.gpu.layout import Layout
from foveal.gpu.towers.protocol import Geometry
from foveal.ipc.messages import PackItem
from foveal.types import DType

TORCH_DTYPES: dict[DType, torch.dtype] = {
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float32": torch.float32,
}
LARGEST: dict[DType, float] = {name: torch.finfo(dtype).max for name, dtype in TORCH_DTYPES.items()}
Failures = tuple[tuple[int, str], ...]


def write(place: slice, item: PackItem, output: torch.Tensor, target: torch.Tensor, geometry: Geometry) -> None:
    """Write an item's embedding to its target, uint8 on the host, in the asked kind and dtype.

    Rounds to nearest even, on the device. With a pinned target nothing waits.
    """
    dtype, values = TORCH_DTYPES[item.output.dtype], output[place]
    if item.output.kind == "pooled":
        values = pooled(values, geometry, item.output.normalize)
    target.view(dtype).view(values.shape).copy_(values.to(dtype), non_blocking=True)


def failures_of(layout: Layout, items: Sequence[PackItem], peaks: npt.NDArray[np.float32]) -> Failures:
    """Items whose values are not finite in the asked dtype, by the peaks of their rows, on the host."""
    failures: list[tuple[int, str]] = []
    for i, (item, place) in enumerate(zip(items, layout.tokens(), strict=True)):
        most = LARGEST["float32" if item.output.kind == "pooled" else item.output.dtype]
        if not float(peaks[place].max()) <= most:  # so that NaN fails too
            failures.append((i, f"the embedding of this image is not finite in {item.output.dtype}"))
    return tuple(failures)


def pooled(rows: torch.Tensor, geometry: Geometry, normalize: bool) -> torch.Tensor:
    """Mean of an item's main rows in float32, of length one if asked for."""
    mean = rows[:, : geometry.pooled_width].mean(0, dtype=torch.float32)
    return F.normalize(mean, dim=0) if normalize else mean
