"""From a row's number to its place in its picture, and from there to position embedding and rope angles.

Everything is computed on the device from two small int32 tensors, inside the forward, so that no host work and no
large position buffers are needed. Padding rows are given the place (0, 0) of a smallest picture: finite, and unread.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F

from foveal.gpu.inputs import Inputs


class PatchPositions(NamedTuple):
    """For each row, int32 [rows]. Prefix rows have the place of the first patch."""

    local: torch.Tensor
    """Number of the row in its item."""
    y: torch.Tensor
    """In patches, like all that follow."""
    x: torch.Tensor
    height: torch.Tensor
    """Of the whole picture."""
    width: torch.Tensor


class WindowOrder(NamedTuple):
    """The order in which windows follow each other, int32; see `windowed`."""

    source: torch.Tensor
    """[rows]: for each row in window order, where it is in the inputs' order."""
    spans: torch.Tensor
    """[rows, 2]: first row of its window and the one after the last; equal for padding."""
    order: torch.Tensor
    """[tokens]: for each token in the inputs' order, where it is in window order."""


def locate(inputs: Inputs, merge_size: int, prefix_rows: int = 0) -> PatchPositions:
    """The positions of all rows; within a picture rows come merge block by merge block."""
    item, local = _owners(inputs)
    size = inputs.grids.index_select(0, item.clamp(max=inputs.grids.shape[0] - 1))
    size = torch.where((item >= inputs.grids.shape[0])[:, None], merge_size, size)
    height, width = size.unbind(1)
    block, within = _divide((local - prefix_rows).clamp(min=0), merge_size**2)
    block_y, block_x = _divide(block, torch.div(width, merge_size, rounding_mode="floor"))
    within_y, within_x = _divide(within, merge_size)
    return PatchPositions(local, block_y * merge_size + within_y, block_x * merge_size + within_x, height, width)


def windowed(inputs: Inputs, merge_size: int, window: int) -> WindowOrder:
    """Rows in window order: windows of `window` x `window` tokens go in raster order, tokens within one as well.

    Windows at the right and lower edge are smaller. The order is that of Qwen2.5-VL's get_vision_window_index, in
    closed form: a row of windows is complete before the next begins, and so is a window.
    """
    area = merge_size**2
    item, local = _owners(inputs)
    is_padding = item >= inputs.grids.shape[0]
    size = inputs.grids.index_select(0, item.clamp(max=inputs.grids.shape[0] - 1))
    high, wide = (torch.where(is_padding, 1, side // merge_size) for side in size.unbind(1))
    base = torch.arange(local.shape[0], dtype=torch.int32, device=local.device) - local
    number, within = _divide(local, area)
    window_y, rest = _divide(number, window * wide)
    tall = torch.minimum(high - window * window_y, torch.full_like(high, window))
    window_x, rest = _divide(rest, window * tall)
    broad = torch.minimum(wide - window * window_x, torch.full_like(wide, window))
    y, x = _divide(rest, broad)
    source = base + ((window * window_y + y) * wide + window * window_x + x) * area + within
    source = torch.where(is_padding, base + local, source)
    start = base + area * window * (window_y * wide + window_x * tall)
    spans = torch.where(is_padding[:, None], 0, torch.stack([start, start + area * tall * broad], dim=1))
    order = torch.empty_like(source[::area])
    order[source[::area].long() // area] = torch.arange(order.shape[0], dtype=torch.int32, device=order.device)
    return WindowOrder(source, spans, order)


def _owners(inputs: Inputs) -> tuple[torch.Tensor, torch.Tensor]:
    """Each row's item, the number of items for padding, and its number within it, 0 for padding."""
    cu_seqlens = inputs.cu_seqlens
    row = torch.arange(inputs.rows.shape[0], dtype=torch.int32, device=cu_seqlens.device)
    # right=True steps over empty segments, so unused positions of cu_seqlens own no row
    item = torch.searchsorted(cu_seqlens[1:], row, right=True, out_int32=True)
    is_padding = item >= inputs.grids.shape[0]
    first = cu_seqlens.index_select(0, item.clamp(max=inputs.grids.shape[0] - 1))
    return item, torch.where(is_padding, 0, row - first)


def _divide(number: torch.Tensor, by: torch.Tensor | int) -> tuple[torch.Tensor, torch.Tensor]:
    quotient = torch.div(number, by, rounding_mode="floor")
    return quotient, number - quotient * by


def interpolated(table: torch.Tensor, positions: PatchPositions) -> torch.Tensor:
    """Bilinear samples, float32 [rows, hidden], of a square table [side², hidden] stretched over each picture.

    The corners of table and picture coincide (align_corners), as in the reference.
    """
    side = round(table.shape[0] ** 0.5)
    y0, y1, wy = _neighbours(positions.y, positions.height, side)
    x0, x1, wx = _neighbours(positions.x, positions.width, side)
    corners = ((y0, x0, (1 - wy) * (1 - wx)), (y0, x1, (1 - wy) * wx), (y1, x0, wy * (1 - wx)), (y1, x1, wy * wx))
    # one corner after the other: a gather of all four at once would be the largest tensor of the whole forward
    total: torch.Tensor | None = None
    for y, x, weight in corners:
        sample = F.embedding(y * side + x, table)
        total = sample.mul_(weight[:, None]) if total is None else total.addcmul_(sample, weight[:, None])
    assert total is not None
    return total


def _neighbours(index: torch.Tensor, size: torch.Tensor, side: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Lower and upper neighbour in the table, and the weight of the upper one."""
    source = index.float() * (side - 1) / (size - 1).clamp(min=1)
    floor = source.floor()
    lower = floor.int()
    return lower.clamp(0, side - 1), (lower + 1).clamp(0, side - 1), source - floor


def antialiased(table: torch.Tensor, positions: PatchPositions) -> torch.Tensor:
    """Float32 [rows, hidden] of a square table [side², hidden], resized to each picture.

    Resizing is linear, so it is one matrix product with the weights of antialiased bilinear interpolation, those of
    F.interpolate(mode="bilinear", align_corners=False, antialias=True) (transformers' Siglip2VisionEmbeddings).
    """
    side = round(table.shape[0] ** 0.5)
    down, across = _axis_weights(positions.y, positions.height, side), _axis_weights(positions.x, positions.width, side)
    return (down[:, :, None] * across[:, None, :]).flatten(1) @ table


def _axis_weights(index: torch.Tensor, size: torch.Tensor, side: int) -> torch.Tensor:
    """Weight of each of `side` places of the table, float32 [rows, side]: a triangle as wide as a step, at least 1."""
    scale = side / size.float()
    centre = (index.float() + 0.5) * scale - 0.5
    source = torch.arange(side, dtype=torch.float32, device=index.device)
    weights = (1 - (source - centre[:, None]).abs() / scale.clamp(min=1)[:, None]).clamp(min=0)
    return weights / weights.sum(1, keepdim=True)


def rope_frequencies(head_dim: int, theta: float, device: torch.device) -> torch.Tensor:
    """Inverse frequencies, float32 [head_dim / 4]: half of the rotated pairs turn with y, half with x."""
    half = head_dim // 2
    return 1.0 / (theta ** (torch.arange(0, half, 2, dtype=torch.float32, device=device) / half))


def rope_angles(positions: PatchPositions, frequencies: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosine and sine, float32 [rows, head_dim / 2]."""
    angles = torch.cat([positions.y[:, None] * frequencies, positions.x[:, None] * frequencies], dim=1)
    return angles.cos(), angles.sin()
