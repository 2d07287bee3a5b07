"""Which bytes of a pack go where, between the arenas and the buffers on the device: plain numbers, no device.

A pack has a copy for each image and way, and issuing one costs the host some microseconds. So what is adjacent on
both sides travels as one: the api's allocator often puts the images of a pack side by side.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from foveal.gpu.layout import Layout
from foveal.ipc.messages import PackItem
from foveal.types import DTYPE_BYTES, DType


class Copy(NamedTuple):
    """So many bytes, from and to offsets: one counts in an arena, the other in a buffer."""

    target: int
    source: int
    num_bytes: int


def rows_in(layout: Layout, items: Sequence[PackItem], row_bytes: int) -> list[Copy]:
    """Patch rows, from the arena to the rows buffer: each item's behind its prefix rows, which stay as they are."""
    prefix = layout.prefix_rows
    starts = [(start + prefix) * row_bytes for start in layout.cu_rows]
    spans = [item.rows for item in items]
    return joined([Copy(start, span.offset, span.length) for start, span in zip(starts, spans, strict=False)])


def tokens_out(layout: Layout, items: Sequence[PackItem], width: int) -> dict[DType, list[Copy]]:
    """Token rows, from the output buffer to the arena, of the items that ask for them.

    By the dtype asked for: sources count as if the whole buffer [tokens, width] were of that dtype.
    """
    area = layout.merge_area
    copies: dict[DType, list[Copy]] = {}
    for start, item in zip(layout.cu_rows, items, strict=False):
        output, span = item.output, item.embedding
        if output.kind == "tokens":
            source = start // area * width * DTYPE_BYTES[output.dtype]
            copies.setdefault(output.dtype, []).append(Copy(span.offset, source, span.length))
    return {dtype: joined(found) for dtype, found in copies.items()}


def joined(copies: Iterable[Copy]) -> list[Copy]:
    """The same bytes in fewer copies: neighbours in the list that are neighbours on both sides are one."""
    whole: list[Copy] = []
    next_target = next_source = -1
    for copy in copies:
        target, source, num_bytes = copy
        if target == next_target and source == next_source:
            first = whole[-1]
            whole[-1] = Copy(first.target, first.source, first.num_bytes + num_bytes)
        else:
            whole.append(copy)
        next_target, next_source = target + num_bytes, source + num_bytes
    return whole
