"""Embeddings as answers: safetensors sent straight from shared memory, or JSON made in pieces.

An answer is a list of buffers. Those of a safetensors answer are views of the arena that the worker wrote into;
the transport keeps them alive until they are sent, so no byte of an embedding is copied here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import orjson
import pybase64

from foveal.engine.items import Encoded
from foveal.families.spec import ModelSpec
from foveal.types import DType

Buffer = bytes | memoryview

_TENSOR_DTYPES: dict[DType, str] = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}
_NUMPY_DTYPES: dict[DType, Any] = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16, "float32": np.float32}
_BASE64_PIECE_BYTES = 3 << 18
_FLOAT_PIECE_VALUES = 1 << 16


def usage_of(encoded: Sequence[Encoded]) -> dict[str, int]:
    """Sums over a request's images."""
    return {
        "images": len(encoded),
        "patches": sum(e.grid.num_patches for e in encoded),
        "tokens": sum(e.num_tokens for e in encoded),
    }


def safetensors_buffers(spec: ModelSpec, encoded: Sequence[Encoded]) -> list[Buffer]:
    """One safetensors file: `grid_thw` int64 [n, 3], then `image.0`, `image.1`, ...; header padded to 8 bytes."""
    grids = np.array([e.grid for e in encoded], "<i8")
    header: dict[str, Any] = {"__metadata__": _metadata(spec, encoded)}
    header["grid_thw"] = {"dtype": "I64", "shape": list(grids.shape), "data_offsets": [0, grids.nbytes]}
    at = grids.nbytes
    for i, e in enumerate(encoded):
        end = at + e.num_bytes
        dtype = _TENSOR_DTYPES[e.output.dtype]
        header[f"image.{i}"] = {"dtype": dtype, "shape": list(e.shape), "data_offsets": [at, end]}
        at = end
    head = orjson.dumps(header)
    head += b" " * (-len(head) % 8)
    return [len(head).to_bytes(8, "little") + head + grids.tobytes(), *(e.embedding.view.data for e in encoded)]


def _metadata(spec: ModelSpec, encoded: Sequence[Encoded]) -> dict[str, str]:
    """All values are strings, as safetensors demands: lists and objects as JSON text."""
    levels = [{"name": level.name, "start": level.start, "stop": level.stop} for level in spec.levels]
    if encoded[0].output.kind == "pooled":
        levels = [{"name": "pooled", "start": 0, "stop": spec.pooled_width}]
    lists = {
        "sha256": [e.sha256 for e in encoded],
        "tokens": [e.num_tokens for e in encoded],
        "image_size": [e.image_size for e in encoded],
        "cached": [e.cached for e in encoded],
        "levels": levels,
        "usage": usage_of(encoded),
    }
    texts = {name: orjson.dumps(value).decode() for name, value in lists.items()}
    return {"model": spec.name, "dtype": encoded[0].output.dtype, "output": encoded[0].output.kind, **texts}


def json_buffers(spec: ModelSpec, encoded: Sequence[Encoded], as_numbers: bool) -> Iterator[Buffer]:
    """The JSON answer in pieces, so that no long piece of work holds the loop."""
    yield b'{"object":"list","model":' + orjson.dumps(spec.name) + b',"data":['
    for i, e in enumerate(encoded):
        facts = {
            "object": "embedding",
            "index": i,
            "shape": e.shape,
            "dtype": e.output.dtype,
            "grid_thw": list(e.grid),
            "tokens": e.num_tokens,
            "image_size": e.image_size,
            "sha256": e.sha256,
            "cached": e.cached,
        }
        yield (b"," if i else b"") + orjson.dumps(facts)[:-1] + b',"embedding":'
        yield from number_pieces(e) if as_numbers else base64_pieces(e.embedding.view.data)
        yield b"}"
    yield b'],"usage":' + orjson.dumps(usage_of(encoded)) + b"}"


def base64_pieces(values: memoryview) -> Iterator[bytes]:
    """A JSON string of base64, in pieces of whole triplets."""
    yield b'"'
    for at in range(0, len(values), _BASE64_PIECE_BYTES):
        yield pybase64.b64encode(values[at : at + _BASE64_PIECE_BYTES])
    yield b'"'


def number_pieces(e: Encoded) -> Iterator[bytes]:
    """Nested JSON numbers, each the shortest text that gives the same value back."""
    values = e.embedding.view.view(_NUMPY_DTYPES[e.output.dtype]).reshape(e.shape)
    if values.ndim == 1:
        yield _numbers(values)
        return
    rows = max(1, _FLOAT_PIECE_VALUES // values.shape[1])
    for at in range(0, len(values), rows):
        yield (b"," if at else b"[") + _numbers(values[at : at + rows])[1:-1]
    yield b"]"


def _numbers(values: np.ndarray[Any, Any]) -> bytes:
    wide = np.ascontiguousarray(values, np.float32)
    return orjson.dumps(wide, option=orjson.OPT_SERIALIZE_NUMPY)
