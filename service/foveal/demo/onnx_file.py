"""Reads weights out of an ONNX file: its constant tensors, and which node uses which.

ONNX is Protocol Buffers, of which this takes four messages. The `onnx` package would do the same with 9 MB of wheel and
protobuf beside it: too much for a demo.
"""

from __future__ import annotations

from collections import defaultdict
from math import prod
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]
Fields = dict[int, list[Any]]
"""Values of a message by the number of their field: int, or memoryview for whatever has a length."""

# Numbers of fields in onnx.proto.
_MODEL_GRAPH = 7
_GRAPH_NODES, _GRAPH_TENSORS = 1, 5
_NODE_INPUTS, _NODE_NAME, _NODE_OP = 1, 3, 4
_TENSOR_DIMS, _TENSOR_TYPE, _TENSOR_NAME, _TENSOR_RAW = 1, 2, 8, 9
_FLOAT32 = 1
# How a field is written: its wire type, in the low three bits of its key.
_VARINT, _FIXED64, _WITH_LENGTH, _FIXED32 = 0, 1, 2, 5
_FIXED_BYTES = {_FIXED64: 8, _FIXED32: 4}


class Node(NamedTuple):
    """One operation and the names of the tensors that go into it."""

    op: str
    name: str
    inputs: tuple[str, ...]


class Graph(NamedTuple):
    """What an ONNX file holds, as far as weights go."""

    tensors: dict[str, Array]
    """The float32 constants by name: views of the file's bytes."""
    nodes: list[Node]


def read_graph(path: Path) -> Graph:
    """The graph of a model file. Raises OSError, or ValueError for what is no whole ONNX file."""
    try:
        graph = _one(_fields(memoryview(path.read_bytes())), _MODEL_GRAPH)
        fields = _fields(graph)
        tensors = [_fields(tensor) for tensor in fields[_GRAPH_TENSORS]]
        return Graph(
            {_text(t, _TENSOR_NAME): _array(t) for t in tensors if t[_TENSOR_TYPE] == [_FLOAT32]},
            [_node(_fields(node)) for node in fields[_GRAPH_NODES]],
        )
    except (IndexError, TypeError, UnicodeDecodeError) as error:
        raise ValueError(f"not an ONNX file, or a damaged one ({error})") from None


def _fields(message: memoryview) -> Fields:
    found: Fields = defaultdict(list)
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        number, wire = key >> 3, key & 7
        if wire == _VARINT:
            value, at = _varint(message, at)
            found[number].append(value)
            continue
        if wire == _WITH_LENGTH:
            length, at = _varint(message, at)
        elif wire in _FIXED_BYTES:
            length = _FIXED_BYTES[wire]
        else:
            raise ValueError(f"not an ONNX file: no field is written in form {wire}")
        if at + length > len(message):
            raise ValueError(f"a field of {length} bytes ends {at + length - len(message)} bytes after its message")
        found[number].append(message[at : at + length])
        at += length
    return found


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    """A number of seven bits a byte, lowest first, and the place after it."""
    value = shift = 0
    while True:
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def _node(fields: Fields) -> Node:
    inputs = tuple(str(name, "utf-8") for name in fields[_NODE_INPUTS])
    return Node(_text(fields, _NODE_OP), _text(fields, _NODE_NAME), inputs)


def _array(fields: Fields) -> Array:
    """Only tensors whose bytes lie in the file as they are; the other forms do not occur where weights are large."""
    dims = [int(n) for n in fields[_TENSOR_DIMS]]
    raw = _one(fields, _TENSOR_RAW)
    if len(raw) != 4 * prod(dims):
        raise ValueError(f"tensor {_text(fields, _TENSOR_NAME)} of shape {dims} has {len(raw)} bytes")
    return np.frombuffer(raw, "<f4").reshape(dims)


def _text(fields: Fields, number: int) -> str:
    return str(fields[number][0], "utf-8") if fields[number] else ""


def _one(fields: Fields, number: int) -> memoryview:
    if len(fields[number]) != 1:
        raise ValueError(f"field {number} occurs {len(fields[number])} times, not once")
    return cast(memoryview, fields[number][0])
