"""Where the items of a pack lie in the buffers, and whether they fit: plain numbers, checked before anything runs."""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import NamedTuple

from foveal.gpu.towers.protocol import Geometry
from foveal.ipc.messages import PackItem, RunPack
from foveal.types import DTYPE_BYTES

Grid = tuple[int, int]
"""Height and width in patches."""


class Step(NamedTuple):
    """One step of the ladder, as capacities."""

    tokens: int
    items: int


class Room(NamedTuple):
    """Bytes of the arenas that spans lie in."""

    rows: int
    embeddings: int


class BadPack(Exception):
    """A pack that breaks a capacity or whose spans do not fit its grids: a bug of the sender, so nothing ran."""


class Layout(NamedTuple):
    """Items one after the other, in the pack's order: each its prefix rows, then its patches."""

    grids: tuple[Grid, ...]
    cu_rows: tuple[int, ...]
    """Where each item's rows start, and the end of the last: items + 1 numbers."""
    prefix_rows: int
    merge_area: int

    @property
    def num_items(self) -> int:
        """Items of the pack."""
        return len(self.grids)

    @property
    def num_rows(self) -> int:
        """Input rows of all items."""
        return self.cu_rows[-1]

    @property
    def num_tokens(self) -> int:
        """Output rows of all items."""
        return self.cu_rows[-1] // self.merge_area

    def patches(self) -> list[slice]:
        """Input rows of each item that come from its picture."""
        return [slice(start + self.prefix_rows, stop) for start, stop in pairwise(self.cu_rows)]

    def tokens(self) -> list[slice]:
        """Output rows of each item."""
        return [slice(start // self.merge_area, stop // self.merge_area) for start, stop in pairwise(self.cu_rows)]


def lay_out(grids: tuple[Grid, ...], geometry: Geometry) -> Layout:
    """Place pictures of these grids."""
    prefix = geometry.prefix_rows
    return Layout(grids, tuple(accumulate([prefix + h * w for h, w in grids], initial=0)), prefix, geometry.merge_area)


def checked_layout(pack: RunPack, step: Step | None, geometry: Geometry, room: Room) -> Layout:
    """The layout of a pack; raises BadPack. Without a step it runs eager, and nothing bounds it."""
    if not pack.items:
        raise BadPack("a pack has no items: this is a bug")
    for i, item in enumerate(pack.items):
        if complaint := _complaint(item, geometry, room):
            raise BadPack(f"item {i} {complaint}: this is a bug")
    layout = lay_out(tuple([(item.grid_h, item.grid_w) for item in pack.items]), geometry)
    if step is not None and (layout.num_tokens > step.tokens or layout.num_items > step.items):
        raise BadPack(
            f"{layout.num_items} items of {layout.num_tokens} tokens do not fit a budget of "
            f"{step.items} items and {step.tokens} tokens: this is a bug"
        )
    return layout


def embedding_bytes(item: PackItem, geometry: Geometry) -> int:
    """Bytes of one item's answer."""
    if item.output.kind == "pooled":
        values = geometry.pooled_width
    else:
        values = num_tokens(item.grid_h, item.grid_w, geometry) * geometry.width
    return values * DTYPE_BYTES[item.output.dtype]


def num_tokens(height: int, width: int, geometry: Geometry) -> int:
    """Output rows of a picture of so many patches."""
    return (geometry.prefix_rows + height * width) // geometry.merge_area


def _complaint(item: PackItem, geometry: Geometry, room: Room) -> str | None:
    """What is wrong with an item. Copies go by address: nothing else would notice a span outside its arena."""
    height, width, side, fixed = item.grid_h, item.grid_w, geometry.merge_size, geometry.fixed_grid
    if height < 1 or width < 1 or height % side or width % side:
        return f"has a grid of {height} x {width}, no multiple of {side}"
    if fixed is not None and (height, width) != fixed:
        return f"has a grid of {height} x {width}, and the tower takes {fixed[0]} x {fixed[1]} only"
    rows, embedding = item.rows, item.embedding
    if rows.length != height * width * geometry.row_bytes:
        return f"has {rows.length} bytes for its rows, not {height * width * geometry.row_bytes}"
    if embedding.length != embedding_bytes(item, geometry):
        return f"has {embedding.length} bytes for its embedding, not {embedding_bytes(item, geometry)}"
    if rows.offset < 0 or rows.offset + rows.length > room.rows:
        return f"has rows at {rows.offset}, outside an arena of {room.rows} bytes"
    if embedding.offset < 0 or embedding.offset + embedding.length > room.embeddings:
        return f"has an embedding at {embedding.offset}, outside an arena of {room.embeddings} bytes"
    return None
