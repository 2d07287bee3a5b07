"""From a row's number to its place: which item, which patch of the picture, which window. Shared by kernels.

Padding rows have the place (0, 0) of a smallest picture: finite, and unread.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def find_item(
    row, cu_seqlens, grids, items,
    MERGE: tl.constexpr, PREFIX: tl.constexpr, BLOCK_ITEMS: tl.constexpr,
):  # fmt: skip
    """Whether the row is of an item (else padding), the item's first row, its height and width in patches."""
    place = tl.arange(0, BLOCK_ITEMS)
    ends = tl.load(cu_seqlens + 1 + place, mask=place < items, other=2147483647)
    item = tl.sum((ends <= row).to(tl.int32), 0)
    is_item = item < items
    item = tl.minimum(item, items - 1)
    start = tl.where(is_item, tl.load(cu_seqlens + item), row - PREFIX)
    height = tl.where(is_item, tl.load(grids + item * 2), MERGE)
    width = tl.where(is_item, tl.load(grids + item * 2 + 1), MERGE)
    return is_item, start, height, width


@triton.jit
def find_patch(patch, height, width, MERGE: tl.constexpr, WINDOW: tl.constexpr):
    """Row and column of an item's patch, its number in the order of the inputs, and its window's first and number.

    `patch` counts in the order that the blocks see: merge blocks row by row, or window by window, those at the lower
    and right edge smaller; within a window again row by row.
    """
    area = MERGE * MERGE
    token, within = patch // area, patch % area
    down, across = height // MERGE, width // MERGE
    if WINDOW > 0:
        band = token // (WINDOW * across)  # windows side by side
        tall = tl.maximum(tl.minimum(WINDOW, down - WINDOW * band), 1)
        in_band = token - band * WINDOW * across
        pane = in_band // (WINDOW * tall)
        wide = tl.maximum(tl.minimum(WINDOW, across - WINDOW * pane), 1)
        in_pane = in_band - pane * WINDOW * tall
        token_y = WINDOW * band + in_pane // wide
        token_x = WINDOW * pane + in_pane % wide
        first = (token - in_pane) * area
        count = tall * wide * area
    else:
        token_y, token_x = token // across, token % across
        first = patch - patch
        count = first
    y = token_y * MERGE + within // MERGE
    x = token_x * MERGE + within % MERGE
    return y, x, (token_y * across + token_x) * area + within, first, count
