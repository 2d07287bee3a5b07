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
from foveal.handover.ec_file import Buffer
from foveal.handover.safetensors import NAMES, Tensor, as_texts, grids_of, head_of, levels_of
from foveal.types import DType

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


def safetensors_buffers(spec: ModelSpec, encoded: Sequence[Encoded], held: bool = False) -> list[Buffer]:
    """One safetensors file: `grid_thw` int64 [n, 3], then `image.0`, `image.1`, ..., unless they are held."""
    grids, values = grids_of([e.grid for e in encoded])
    rows = [Tensor(f"image.{i}", NAMES[e.output.dtype], e.shape, e.num_bytes) for i, e in enumerate(encoded)]
    metadata = _metadata(spec, encoded)
    if held:
        shapes = as_texts({"shapes": [e.shape for e in encoded]})
        return [head_of(metadata | shapes, [grids]) + values]
    return [head_of(metadata, [grids, *rows]) + values, *(e.embedding.view.data for e in encoded)]


def _metadata(spec: ModelSpec, encoded: Sequence[Encoded]) -> dict[str, str]:
    output = encoded[0].output
    lists = {
        "sha256": [e.sha256 for e in encoded],
        "keys": [e.key for e in encoded],
        "tokens": [e.num_tokens for e in encoded],
        "image_size": [e.image_size for e in encoded],
        "cached": [e.cached for e in encoded],
        "levels": levels_of(spec, output),
        "usage": usage_of(encoded),
    }
    return {"model": spec.name, "dtype": output.dtype, "output": output.kind, **as_texts(lists)}


def json_buffers(spec: ModelSpec, encoded: Sequence[Encoded], as_numbers: bool, held: bool = False) -> Iterator[Buffer]:
    """The JSON answer in pieces, so that no long piece of work holds the loop; without values where they are held."""
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
            "key": e.key,
            "cached": e.cached,
        }
        yield (b"," if i else b"") + orjson.dumps(facts)[:-1] + b',"embedding":'
        yield from [b"null"] if held else number_pieces(e) if as_numbers else base64_pieces(e.embedding.view.data)
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
