"""Where the items of a pack lie in the buffers, and whether they fit: plain numbers, checked before anything runs."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import NamedTuple

from foveal.gpu.towers.protocol import Geometry
from foveal.ipc.messages import PackItem, RunPack
from foveal.types import DTYPE_BYTES


class Step(NamedTuple):
    """One step of the ladder, as capacities."""

    tokens: int
    items: int


class BadPack(Exception):
    """A pack that breaks a capacity or whose spans do not fit its grids: a bug of the sender, so nothing ran."""


@dataclass(frozen=True)
class Layout:
    """Items one after the other, in the pack's order."""

    grids: tuple[tuple[int, int], ...]
    cu_patches: tuple[int, ...]
    """Where each item's patch rows start, and the end of the last: items + 1 numbers."""
    merge_area: int

    @property
    def num_items(self) -> int:
        """Items of the pack."""
        return len(self.grids)

    @property
    def num_tokens(self) -> int:
        """Output rows of all items."""
        return self.cu_patches[-1] // self.merge_area

    def patches(self) -> list[slice]:
        """Input rows of each item."""
        return [slice(start, stop) for start, stop in pairwise(self.cu_patches)]

    def tokens(self) -> list[slice]:
        """Output rows of each item."""
        return [slice(start // self.merge_area, stop // self.merge_area) for start, stop in pairwise(self.cu_patches)]


def lay_out(grids: tuple[tuple[int, int], ...], merge_area: int) -> Layout:
    """Place pictures of these grids (height, width in patches)."""
    return Layout(grids, tuple(accumulate((h * w for h, w in grids), initial=0)), merge_area)


def checked_layout(pack: RunPack, step: Step | None, geometry: Geometry) -> Layout:
    """The layout of a pack; raises BadPack. Without a step it runs eager, and nothing bounds it."""
    if not pack.items:
        raise BadPack("a pack has no items: this is a bug")
    for i, item in enumerate(pack.items):
        _check_item(i, item, geometry)
    layout = lay_out(tuple((item.grid_h, item.grid_w) for item in pack.items), geometry.merge_area)
    if step is not None and (layout.num_tokens > step.tokens or layout.num_items > step.items):
        raise BadPack(
            f"{layout.num_items} items of {layout.num_tokens} tokens do not fit a budget of "
            f"{step.items} items and {step.tokens} tokens: this is a bug"
        )
    return layout


def embedding_bytes(item: PackItem, geometry: Geometry) -> int:
    """Bytes of one item's answer."""
    num_tokens = item.grid_h * item.grid_w // geometry.merge_area
    values = geometry.pooled_width if item.output.kind == "pooled" else num_tokens * geometry.width
    return values * DTYPE_BYTES[item.output.dtype]


def _check_item(index: int, item: PackItem, geometry: Geometry) -> None:
    sides = (item.grid_h, item.grid_w)
    if min(sides) < 1 or any(side % geometry.merge_size for side in sides):
        raise BadPack(f"item {index} has a grid of {sides}, no multiple of {geometry.merge_size}: this is a bug")
    wanted = {
        "rows": (item.rows.length, item.grid_h * item.grid_w * geometry.row_bytes),
        "embedding": (item.embedding.length, embedding_bytes(item, geometry)),
    }
    for name, (length, expected) in wanted.items():
        if length != expected:
            raise BadPack(f"item {index} has {length} bytes for its {name}, not {expected}: this is a bug")
