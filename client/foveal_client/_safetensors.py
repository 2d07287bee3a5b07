"""The safetensors container, read strictly and without copying. Knows nothing of images; never runs what it reads."""

from __future__ import annotations

import json
import math
import struct
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from foveal_client._errors import InvalidResponse

MAX_HEADER_BYTES = 16 * 1024 * 1024
"""Room for tens of thousands of images; a larger number is not a length."""
_MAX_RANK = 8
_LENGTH_BYTES = 8
DTYPES: dict[str, np.dtype[Any]] = {
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F16": np.dtype("<f2"),
    "F32": np.dtype("<f4"),
    "I64": np.dtype("<i8"),
}


@dataclass(frozen=True)
class _Place:
    """Where one tensor lies: bytes begin..end after the header."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    begin: int
    end: int


def read_container(body: bytes | bytearray | memoryview) -> tuple[dict[str, npt.NDArray[Any]], dict[str, str]]:
    """The tensors, as views on `body`, and the metadata. Raises InvalidResponse, naming both numbers."""
    header, start = _header(body)
    metadata = _metadata(header.pop("__metadata__", {}))
    places = [_place(name, entry) for name, entry in header.items()]
    _check_layout(places, len(body) - start)
    return {place.name: _view(body, start, place) for place in places}, metadata


def _header(body: bytes | bytearray | memoryview) -> tuple[dict[str, Any], int]:
    """The header's JSON object, and where the tensors' bytes begin."""
    if len(body) < _LENGTH_BYTES:
        raise InvalidResponse(f"a safetensors body has at least {_LENGTH_BYTES} bytes, this one {len(body)}")
    (length,) = struct.unpack_from("<Q", body)
    longest = min(MAX_HEADER_BYTES, len(body) - _LENGTH_BYTES)
    if length > longest:
        raise InvalidResponse(f"the header claims {length} bytes; in a body of {len(body)} it has at most {longest}")
    start = _LENGTH_BYTES + length
    try:
        header: object = json.loads(bytes(body[_LENGTH_BYTES:start]), object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise InvalidResponse(f"the header of {length} bytes is not JSON: {error}") from error
    if not isinstance(header, dict):
        raise InvalidResponse(f"the header is a {type(header).__name__}, not an object")
    return header, start


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object without repeated keys, of which readers would pick different ones."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError(f"an object repeats a key: {len(pairs)} keys, {len(found)} different")
    return found


def _metadata(found: object) -> dict[str, str]:
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise InvalidResponse("__metadata__ must hold strings only")
    return found


def _place(name: str, entry: object) -> _Place:
    """One entry of the header, checked by itself."""
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise InvalidResponse(f"{name}: a tensor has dtype, shape and data_offsets, and nothing else")
    dtype = DTYPES.get(entry["dtype"]) if isinstance(entry["dtype"], str) else None
    if dtype is None:
        raise InvalidResponse(f"{name}: dtype {entry['dtype']!r} is none of {', '.join(DTYPES)}")
    shape, offsets = _counts(name, "shape", entry["shape"]), _counts(name, "data_offsets", entry["data_offsets"])
    if len(shape) > _MAX_RANK or len(offsets) != 2:
        raise InvalidResponse(f"{name}: {len(shape)} dimensions and {len(offsets)} offsets, not at most 8 and 2")
    begin, end = offsets
    size = math.prod(shape) * dtype.itemsize
    if end - begin != size:
        raise InvalidResponse(f"{name}: shape {list(shape)} of {dtype} needs {size} bytes, its offsets {end - begin}")
    return _Place(name, dtype, shape, begin, end)


def _counts(name: str, what: str, found: object) -> tuple[int, ...]:
    if not isinstance(found, list) or not all(type(number) is int and number >= 0 for number in found):
        raise InvalidResponse(f"{name}: {what} must be a list of numbers from 0 up")
    return tuple(found)


def _check_layout(places: list[_Place], num_bytes: int) -> None:
    """The tensors follow one another without gap or overlap, and fill the body to its end."""
    at = 0
    for place in sorted(places, key=lambda place: (place.begin, place.end)):
        if place.begin != at:
            raise InvalidResponse(f"{place.name} begins at byte {place.begin}, the one before it ends at {at}")
        at = place.end
    if at != num_bytes:
        raise InvalidResponse(f"the tensors end at byte {at}, the body has {num_bytes} after its header")


def _view(body: bytes | bytearray | memoryview, start: int, place: _Place) -> npt.NDArray[Any]:
    count = (place.end - place.begin) // place.dtype.itemsize
    flat = np.frombuffer(body, place.dtype, count, start + place.begin) if count else np.empty(0, place.dtype)
    # Writers pad the header so that this holds; one that did not costs a copy, since few libraries take such arrays.
    aligned = flat if flat.flags.aligned else flat.copy()
    return aligned.reshape(place.shape)
