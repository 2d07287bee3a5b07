"""The head of a safetensors file: JSON that says where each tensor lies in what follows. Writes no values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import orjson

from foveal.families.spec import ModelSpec
from foveal.types import DType, GridTHW, Output

MEDIA_TYPE = "application/vnd.foveal.safetensors"
NAMES: dict[DType, str] = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}
"""Of dtypes, as such a file says them."""


class Tensor(NamedTuple):
    """One tensor of a file."""

    name: str
    dtype: str
    shape: Sequence[int]
    num_bytes: int


def head_of(metadata: Mapping[str, str], tensors: Sequence[Tensor]) -> bytes:
    """What stands before the values of `tensors`, which follow one another; padded to 8 bytes."""
    header: dict[str, Any] = {"__metadata__": metadata}
    at = 0
    for tensor in tensors:
        end = at + tensor.num_bytes
        header[tensor.name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [at, end]}
        at = end
    head = orjson.dumps(header)
    head += b" " * (-len(head) % 8)
    return len(head).to_bytes(8, "little") + head


def grids_of(grids: Sequence[GridTHW]) -> tuple[Tensor, bytes]:
    """`grid_thw` int64 [n, 3], and its values. It comes first, so that what follows stays on 8 bytes."""
    values = b"".join(side.to_bytes(8, "little") for grid in grids for side in grid)
    return Tensor("grid_thw", "I64", (len(grids), 3), len(values)), values


def levels_of(spec: ModelSpec, output: Output) -> list[dict[str, str | int]]:
    """The parts of a row, left to right."""
    if output.kind == "pooled":
        return [{"name": "pooled", "start": 0, "stop": spec.pooled_width}]
    return [{"name": level.name, "start": level.start, "stop": level.stop} for level in spec.levels]


def as_texts(values: Mapping[str, Any]) -> dict[str, str]:
    """Metadata as safetensors demands: lists and objects as JSON text."""
    return {name: orjson.dumps(value).decode() for name, value in values.items()}
