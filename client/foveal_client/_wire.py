"""The answer of /encode → embeddings: the mirror of the server's writer. Owns what the numbers must agree on."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, TypeVar, cast, get_args

import numpy as np
import numpy.typing as npt

from foveal_client._answers import Answer, parse_json
from foveal_client._errors import InvalidResponse
from foveal_client._safetensors import read_container
from foveal_client._types import DType, Embedding, GridTHW, Held, Level, ServerInfo, Usage

MEDIA_TYPE = "application/vnd.foveal.safetensors"
_MEDIA_TYPES = {MEDIA_TYPE, "application/octet-stream"}
_MAX_EXTRA_ROWS = 16
"""Class and register rows that some towers put in front of their patches' rows."""
_KEY = re.compile(r"[0-9a-f]{64}")
_Kind = TypeVar("_Kind", int, str, list[Any])
_TIMING = re.compile(r"\s*([\w.-]+)\s*(?:;.*?\bdur=\"?([0-9.]+)\"?.*)?")


def read_answer(answer: Answer, num_images: int) -> list[Embedding]:
    """The embeddings of a 200, in request order. Raises InvalidResponse for anything that does not agree."""
    if answer.media_type not in _MEDIA_TYPES:
        raise InvalidResponse(f"expected {MEDIA_TYPE}, got {answer.media_type or 'a body without a type'}")
    timings = parse_server_timing(answer.headers.get("server-timing", ""))
    return read_embeddings(answer.body, num_images, answer.request_id, timings)


def read_embeddings(
    body: bytes | bytearray,
    num_images: int,
    request_id: str | None = None,
    timings: Mapping[str, float] | None = None,
) -> list[Embedding]:
    """The embeddings in the bytes of an answer. Arrays are views on `body`. Raises InvalidResponse."""
    tensors, metadata = read_container(body)
    grids = _grids(tensors.pop("grid_thw", None), num_images)
    names = [f"image.{place}" for place in range(num_images)]
    if set(tensors) != set(names):
        raise InvalidResponse(f"expected the tensors of {num_images} images, got {len(tensors)}: {sorted(tensors)[:8]}")
    tokens = _list_of(metadata, "tokens", int, num_images)
    hashes, keys = _list_of(metadata, "sha256", str, num_images), read_keys(metadata, num_images)
    usage, levels, dtype = _usage(metadata), read_levels(_json(metadata, "levels")), _value(metadata, "dtype")
    model = _value(metadata, "model")
    if usage.images != num_images:
        raise InvalidResponse(f"usage counts {usage.images} images, the request had {num_images}")
    for name, grid, count in zip(names, grids, tokens, strict=True):
        _check_image(name, tensors[name], grid, count, dtype, levels)
    return [
        Embedding(
            tensors[name], grid, count, model, cast(DType, dtype), digest, key, levels, request_id, timings or {}, usage
        )
        for name, grid, count, digest, key in zip(names, grids, tokens, hashes, keys, strict=True)
    ]


def read_held(answer: Answer, num_images: int) -> list[Held]:
    """What the server holds after a 200, in request order. Raises InvalidResponse for anything that does not agree."""
    if answer.media_type not in _MEDIA_TYPES:
        raise InvalidResponse(f"expected {MEDIA_TYPE}, got {answer.media_type or 'a body without a type'}")
    tensors, metadata = read_container(answer.body)
    grids = _grids(tensors.pop("grid_thw", None), num_images)
    if tensors:
        raise InvalidResponse(f"the rows should be held, but came: {sorted(tensors)[:8]}")
    tokens, shapes = _list_of(metadata, "tokens", int, num_images), _list_of(metadata, "shapes", list, num_images)
    hashes, keys = _list_of(metadata, "sha256", str, num_images), read_keys(metadata, num_images)
    model, dtype, usage = _value(metadata, "model"), _value(metadata, "dtype"), _usage(metadata)
    if dtype not in get_args(DType):
        raise InvalidResponse(f"dtype is {dtype[:80]!r}, not one of {', '.join(get_args(DType))}")
    for shape, count in zip(shapes, tokens, strict=True):
        if len(shape) != 2 or not all(type(side) is int and side > 0 for side in shape) or shape[0] != count:
            raise InvalidResponse(f"an image of {count} tokens cannot have the shape {str(shape)[:80]}")
    return [
        Held(key, grid, count, tuple(shape), cast(DType, dtype), model, digest, answer.request_id, usage)
        for key, grid, count, shape, digest in zip(keys, grids, tokens, shapes, hashes, strict=True)
    ]


def parse_server_timing(header: str) -> dict[str, float]:
    """Stage → milliseconds of a Server-Timing header; parts without a duration are left out."""
    found = {}
    for part in header.split(","):
        match = _TIMING.fullmatch(part)
        if match and match[2]:
            try:
                found[match[1]] = float(match[2])
            except ValueError:
                continue
    return found


def read_levels(found: object) -> tuple[Level, ...]:
    """Levels of a list of {"name", "start", "stop"}; their columns must follow one another. Raises InvalidResponse."""
    if not isinstance(found, list):
        raise InvalidResponse(f"levels must be a list, not a {type(found).__name__}")
    levels: list[Level] = []
    for entry in found:
        name, start, stop = (entry.get(key) if isinstance(entry, dict) else None for key in Level._fields)
        if not isinstance(name, str) or type(start) is not int or type(stop) is not int:
            raise InvalidResponse(f"a level has a name, a start and a stop, not {str(entry)[:80]}")
        before = levels[-1].stop if levels else 0
        if start != before or stop <= start:
            raise InvalidResponse(f"level {name} covers columns {start}..{stop}, the one before it ends at {before}")
        levels.append(Level(name, start, stop))
    return tuple(levels)


def read_info(answer: Answer) -> ServerInfo:
    """`/info` of a server. Raises InvalidResponse when it does not name its model."""
    raw = parse_json(answer)
    model, family, revision, limits = (raw.get(key) for key in ("model", "family", "revision", "limits"))
    if not isinstance(model, str):
        raise InvalidResponse(f"/info does not name its model: {sorted(raw)[:12]}")
    return ServerInfo(
        model,
        family if isinstance(family, str) else None,
        revision if isinstance(revision, str) else None,
        read_levels(raw.get("levels") or []),
        limits if isinstance(limits, dict) else {},
        raw,
    )


def read_models(answer: Answer) -> list[str]:
    """The names in `/v1/models`. Raises InvalidResponse."""
    data = parse_json(answer).get("data")
    names = [entry.get("id") for entry in data if isinstance(entry, dict)] if isinstance(data, list) else [None]
    if not all(isinstance(name, str) for name in names):
        raise InvalidResponse("/v1/models is not a list of models with an id each")
    return cast(list[str], names)


def read_keys(metadata: Mapping[str, str], num_images: int) -> list[str]:
    """Content keys of the images. Raises InvalidResponse for anything that is none: keys become parts of paths."""
    keys = _list_of(metadata, "keys", str, num_images)
    if wrong := next((key for key in keys if not _KEY.fullmatch(key)), None):
        raise InvalidResponse(f"a key is 64 hex digits, not {wrong[:80]!r}")
    return keys


def _grids(found: npt.NDArray[Any] | None, num_images: int) -> list[GridTHW]:
    if found is None or found.dtype != np.int64 or found.shape != (num_images, 3):
        what = "no tensor" if found is None else f"{found.dtype} {list(found.shape)}"
        raise InvalidResponse(f"grid_thw must be int64 [{num_images}, 3] for {num_images} images, not {what}")
    if found.size and found.min() < 1:
        raise InvalidResponse(f"grid_thw holds {found.min()}; every side has at least 1 patch")
    return [GridTHW(*row) for row in found.tolist()]


def _check_image(
    name: str, values: npt.NDArray[Any], grid: GridTHW, tokens: int, dtype: str, levels: tuple[Level, ...]
) -> None:
    """One image's numbers against each other: a wrong count would crash or mislead an LLM server."""
    if values.dtype.name != dtype or dtype == "int64":
        raise InvalidResponse(f"{name} is {values.dtype.name}, the metadata says {dtype}")
    if values.ndim not in (1, 2) or values.size == 0:
        raise InvalidResponse(f"{name} has shape {list(values.shape)}, not [tokens, width] or [width]")
    if values.ndim == 2 and len(values) != tokens:
        raise InvalidResponse(f"{name} has {len(values)} rows, the metadata says {tokens} tokens")
    extra_rows = tokens - grid.num_patches
    is_merged = tokens > 0 and grid.num_patches % tokens == 0
    if not is_merged and not 0 < extra_rows <= _MAX_EXTRA_ROWS:
        raise InvalidResponse(f"{name} has {tokens} tokens, which {grid.num_patches} patches cannot give")
    if levels and levels[-1].stop != values.shape[-1]:
        raise InvalidResponse(f"{name} has {values.shape[-1]} columns, the levels end at {levels[-1].stop}")


def _value(metadata: Mapping[str, str], key: str) -> str:
    if key not in metadata:
        raise InvalidResponse(f"the metadata lacks {key}; it has {', '.join(sorted(metadata)) or 'nothing'}")
    return metadata[key]


def _json(metadata: Mapping[str, str], key: str) -> object:
    try:
        return json.loads(_value(metadata, key))
    except (ValueError, RecursionError) as error:
        raise InvalidResponse(f"{key} in the metadata is not JSON: {error}") from error


def _list_of(metadata: Mapping[str, str], key: str, kind: type[_Kind], length: int) -> list[_Kind]:
    found = _json(metadata, key)
    if not isinstance(found, list) or not all(type(entry) is kind for entry in found):
        raise InvalidResponse(f"{key} in the metadata must be a list of {kind.__name__}")
    if len(found) != length:
        raise InvalidResponse(f"{key} in the metadata has {len(found)} entries for {length} images")
    return found


def _usage(metadata: Mapping[str, str]) -> Usage:
    found = _json(metadata, "usage")
    counts = [found.get(key) for key in Usage._fields] if isinstance(found, dict) else []
    if not counts or not all(type(count) is int and count >= 0 for count in counts):
        raise InvalidResponse(f"usage must count images, patches and tokens, not {str(found)[:80]}")
    return Usage(*cast(list[int], counts))
