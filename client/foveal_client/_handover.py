"""What must hold of an embedding before an LLM server sees it. Pure.

An LLM server trusts its input: rows, columns or sides that are off have been seen to end the whole engine, or to give
a wrong answer without a warning. Whoever builds a request checks here, so that one bad embedding costs one request.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

KEY = re.compile(r"[0-9a-f]{64}")
"""A content key. Nothing else is looked up or published, since a key becomes part of a path."""
Grid = tuple[int, int, int]
"""Temporal groups, height and width in patches."""
_FLOATS: dict[str, tuple[type[np.unsignedinteger[Any]], int, int]] = {
    "bfloat16": (np.uint16, 0x7FFF, 0x7F80),
    "float16": (np.uint16, 0x7FFF, 0x7C00),
    "float32": (np.uint32, 0x7FFF_FFFF, 0x7F80_0000),
}
"""Bits as an integer, what is left of them without the sign, and from where on they are no finite number."""
_CHUNK_VALUES = 1 << 18


class InvalidEmbedding(ValueError):
    """An embedding that must not reach an LLM server; the text says what was expected and what came."""


def validate_embedding(
    values: npt.NDArray[Any],
    grid_thw: Sequence[int],
    *,
    merge_size: int,
    width: int | None = None,
    num_levels: int = 1,
) -> Grid:
    """The grid as plain integers, when `values` [tokens, width] and `grid_thw` (patches) belong together.

    `width` is what the LLM expects, all levels side by side; None checks only that it divides into `num_levels`.
    Raises InvalidEmbedding, also for values that are not finite.
    """
    grid = validate_grid(grid_thw, merge_size)
    if not isinstance(values, np.ndarray):
        raise InvalidEmbedding(f"the values must be a NumPy array, not a {type(values).__name__}")
    name = values.dtype.name
    if not values.dtype.isnative:
        raise InvalidEmbedding("the values must be in this machine's byte order")
    if name not in _FLOATS:
        raise InvalidEmbedding(f"the values must be one of {', '.join(_FLOATS)}, not {name}")
    if values.ndim != 2:
        raise InvalidEmbedding(f"the values must have the shape [tokens, width], not {list(values.shape)}")
    rows, columns = values.shape
    expected = math.prod(grid) // merge_size**2
    if rows != expected:
        raise InvalidEmbedding(f"a grid of {list(grid)} patches gives {expected} tokens, not {rows} rows")
    if columns == 0 or (width is not None and columns != width):
        raise InvalidEmbedding(f"a row must have {width or 'some'} columns, not {columns}")
    if columns % num_levels:
        raise InvalidEmbedding(f"{columns} columns do not divide into {num_levels} levels")
    if not _all_finite(values):
        raise InvalidEmbedding("the values are not finite: a NaN or an infinity is among them")
    return grid


def validate_grid(grid_thw: Sequence[int], merge_size: int) -> Grid:
    """`grid_thw` as plain integers. Raises InvalidEmbedding unless it is three sides of whole merged squares."""
    try:
        sides = [operator.index(side) for side in grid_thw]
    except TypeError as error:
        raise InvalidEmbedding(f"grid_thw must be three whole numbers, not {str(grid_thw)[:80]}") from error
    if len(sides) != 3 or min(sides) < 1:
        raise InvalidEmbedding(f"grid_thw must be three numbers from 1 up, not {str(sides)[:80]}")
    t, h, w = sides
    if h % merge_size or w % merge_size:
        raise InvalidEmbedding(f"height and width of {sides} must be multiples of the merge size, {merge_size}")
    return t, h, w


def merge_size_of(tokens: int, grid_thw: Sequence[int]) -> int:
    """The merge size that makes `tokens` out of the grid's patches. Raises InvalidEmbedding when none does."""
    patches = math.prod(validate_grid(grid_thw, 1))
    try:
        tokens = operator.index(tokens)
    except TypeError as error:
        raise InvalidEmbedding(f"tokens must be a whole number, not {str(tokens)[:80]}") from error
    merge_size = math.isqrt(patches // tokens) if tokens > 0 else 0
    if merge_size == 0 or tokens * merge_size**2 != patches:
        raise InvalidEmbedding(f"no merge size makes {tokens} tokens out of {patches} patches: not a tower for an LLM?")
    return merge_size


def validate_key(key: object) -> str:
    """The key itself. Raises InvalidEmbedding unless it is 64 lower-case hex digits."""
    if not isinstance(key, str) or not KEY.fullmatch(key):
        raise InvalidEmbedding(f"a content key is 64 hex digits, not {str(key)[:80]!r}")
    return key


def _all_finite(values: npt.NDArray[Any]) -> bool:
    """Bits of the exponent are not all ones. In chunks, so that no second copy of the values is made."""
    kind, without_sign, infinity = _FLOATS[values.dtype.name]
    bits = np.ascontiguousarray(values).reshape(-1).view(kind)
    starts = range(0, bits.size, _CHUNK_VALUES)
    return all(int((bits[start : start + _CHUNK_VALUES] & without_sign).max()) < infinity for start in starts)
