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
Failures = tuple[tuple[int, str], ...]


def copy_out(
    layout: Layout,
    items: Sequence[PackItem],
    output: torch.Tensor,
    targets: Sequence[npt.NDArray[np.uint8]],
    geometry: Geometry,
) -> Failures:
    """Write each item's embedding to its target; one that is not finite is not written but listed."""
    peaks = _peaks(layout, output)
    failures: list[tuple[int, str]] = []
    for i, (item, place, target) in enumerate(zip(items, layout.tokens(), targets, strict=True)):
        dtype = TORCH_DTYPES[item.output.dtype]
        if item.output.kind == "pooled":
            values = pooled(output[place], geometry, item.output.normalize).to(dtype)
            is_finite = bool(values.isfinite().all())
        else:
            values = output[place]
            is_finite = bool(peaks[i].to(dtype).isfinite())
        if is_finite:
            # rounds to nearest even, on the device, and waits until the bytes have arrived
            torch.from_numpy(target).view(dtype).view(values.shape).copy_(values)
        else:
            failures.append((i, f"the embedding of this image is not finite in {item.output.dtype}"))
    return tuple(failures)


def pooled(rows: torch.Tensor, geometry: Geometry, normalize: bool) -> torch.Tensor:
    """Mean of an item's main rows in float32, of length one if asked for."""
    mean = rows[:, : geometry.pooled_width].mean(0, dtype=torch.float32)
    return F.normalize(mean, dim=0) if normalize else mean


def _peaks(layout: Layout, output: torch.Tensor) -> torch.Tensor:
    """Largest magnitude of each item, on the host: float32 [items]. NaN and infinity come through.

    One pass on the device and one wait for the whole pack, not one for each item.
    """
    low, high = torch.aminmax(output[: layout.num_tokens], dim=1)
    rows = torch.maximum(high, -low).float().cpu()
    return torch.stack([rows[place].amax() for place in layout.tokens()])
