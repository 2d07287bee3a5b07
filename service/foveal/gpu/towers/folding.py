"""What is computed once from a checkpoint's tensors, in float32, so that no forward has to.

- Patch embedding: one matrix from uint8 rows. Normalisation and, for a still image, the temporal pair are in it.
- Layer scales go into the matrices before them.
- Tables of positions that are the same for every picture.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from foveal.families.tower_plan import TowerPlan
from foveal.gpu.ops import PositionTables
from foveal.gpu.positions import rope_frequencies

CENTRE = 128.0
"""Pixels enter as (x - 128) / 128, which bfloat16 and float16 hold exactly. The factor 128 goes into the weight,
where it keeps float16 clear of its subnormal numbers."""
Tensors = dict[str, torch.Tensor]
Channels = tuple[float, float, float]


@dataclass(frozen=True)
class PatchMatrix:
    """[hidden, 3 * patch_size²] in the compute dtype, and float32 [hidden]."""

    weight: torch.Tensor
    bias: torch.Tensor


def patch_matrix(plan: TowerPlan, tensors: Tensors, mean: Channels, std: Channels, dtype: torch.dtype) -> PatchMatrix:
    """The checkpoint's patch embedding of pixels (x / 255 - mean) / std, for bytes; takes its tensors away.

    The bias comes from the rounded matrix, so that rounding leaves a mid-grey patch where it was.
    """
    kernel = _one_frame(plan, tensors.pop("patch_embed.weight").float())
    channels = (1, 3, 1, 1)
    weight = (kernel * (CENTRE / 255.0) / kernel.new_tensor(std).view(channels)).to(dtype)
    black = (CENTRE - 255.0 * kernel.new_tensor(mean).view(channels)) / CENTRE
    bias = (weight.float() * black).sum((1, 2, 3))
    if plan.patch_bias:
        bias += tensors.pop("patch_embed.bias").float()
    return PatchMatrix(weight.flatten(1), bias)


def _one_frame(plan: TowerPlan, weight: torch.Tensor) -> torch.Tensor:
    """[hidden, 3, patch_size, patch_size] of any of the shapes in files; a still image's equal frames add up."""
    if plan.patches == "conv3d":
        return weight.sum(2)
    if plan.patches == "linear":
        return weight.view(-1, plan.patch_size, plan.patch_size, 3).permute(0, 3, 1, 2)
    return weight


def fold_scales(plan: TowerPlan, tensors: Tensors) -> None:
    """Layer scales into the matrices whose results they scale, in place: s * (W x + b) = (s W) x + s b."""
    if not plan.layer_scale:
        return
    for i in range(plan.depth):
        for scale, linear in (("scale1", "proj"), ("scale2", "fc2")):
            factor = tensors.pop(f"blocks.{i}.{scale}").float()
            for name in (f"blocks.{i}.{linear}.weight", f"blocks.{i}.{linear}.bias"):
                tensors[name] = tensors[name].float() * factor.view(-1, *(1 for _ in tensors[name].shape[1:]))


def position_tables(plan: TowerPlan, tensors: Tensors, patch_bias: torch.Tensor) -> PositionTables:
    """What the ops need to know of positions, on the device of `patch_bias`; takes its tensors away."""
    device, positions = patch_bias.device, plan.positions
    table = tensors.pop("positions").float().to(device) if positions.table != "none" else None
    theta = positions.rope_theta
    head_dim = plan.hidden // plan.heads
    is_fixed = positions.table == "fixed"
    return PositionTables(
        merge_size=plan.merge_size,
        prefix_rows=plan.prefix_rows,
        window=positions.window,
        bias=None if is_fixed else patch_bias,
        fixed=_item_table(plan, tensors, table, patch_bias) if is_fixed and table is not None else None,
        interpolated=table if positions.table == "interpolated" else None,
        antialiased=table if positions.table == "antialiased" else None,
        frequencies=None if theta is None else rope_frequencies(head_dim, theta, device),
    )


def _item_table(plan: TowerPlan, tensors: Tensors, table: torch.Tensor, patch_bias: torch.Tensor) -> torch.Tensor:
    """[rows of an item, hidden]: prefix rows with the positions that some have, then positions with the bias."""
    assert plan.fixed_grid is not None
    side = int(table.shape[0] ** 0.5)
    with_position = table.shape[0] - side**2
    patches = table[with_position:]
    if plan.fixed_grid != (side, side) or plan.positions.antialias:
        square = patches.T.view(1, -1, side, side)
        grown = F.interpolate(
            square, plan.fixed_grid, mode="bicubic", align_corners=False, antialias=plan.positions.antialias
        )
        patches = grown[0].flatten(1).T
    patches = patches + patch_bias
    if not plan.prefix_rows:
        return patches.contiguous()
    prefix = tensors.pop("prefix").float().to(patches)
    prefix[:with_position] += table[:with_position]
    return torch.cat([prefix, patches])
