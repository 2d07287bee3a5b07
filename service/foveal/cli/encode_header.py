"""What stands before the tensors in a .safetensors, and what must travel with embeddings: written, and read again."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from foveal_client import Embedding

MAX_HEADER_BYTES = 100_000_000
"""As much as the safetensors library reads."""
_DTYPE_NAMES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32", "int64": "I64"}
_ALIGNMENT = 8
_LENGTH = struct.Struct("<Q")
_LARGEST = 10**15
"""A number longer than any that will stand there."""


class Tensor(NamedTuple):
    """One tensor of a file: bytes start..stop after the header."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int

    @classmethod
    def of(cls, values: npt.NDArray[Any], start: int) -> Tensor:
        """An array that begins at `start`."""
        return cls(_DTYPE_NAMES[values.dtype.name], values.shape, start, start + values.nbytes)


class About:
    """What must travel with values: model, dtype and levels of all; grid, tokens, hash and key by name."""

    OF_ALL = ("model", "dtype", "levels")
    BY_NAME = ("grid_thw", "tokens", "sha256", "keys")

    def __init__(self) -> None:
        self.facts: dict[str, Any] = {fact: {} for fact in self.BY_NAME}

    def check(self, embedding: Embedding) -> None:
        """Raises ValueError when it does not belong to those before."""
        for fact, value in _of_all(embedding).items():
            before = self.facts.get(fact, value)
            if before != value and fact == "model":
                raise ValueError(f"the server now has {value}, the pictures before were encoded by {before}")
            if before != value:
                raise ValueError(f"the {fact} of the embeddings changed from {before} to {value}")

    def add(self, name: str, embedding: Embedding) -> None:
        """Note one picture. Raises ValueError as `check`."""
        self.check(embedding)
        self.facts |= _of_all(embedding)
        self.facts["grid_thw"][name] = list(embedding.grid_thw)
        self.facts["tokens"][name] = embedding.tokens
        self.facts["sha256"][name] = embedding.sha256
        self.facts["keys"][name] = embedding.key

    def only(self, names: Iterable[str]) -> About:
        """The same of these pictures alone."""
        wanted, found = list(names), About()
        found.facts = {
            fact: {name: value[name] for name in wanted} if fact in self.BY_NAME else value
            for fact, value in self.facts.items()
        }
        return found

    def metadata(self) -> dict[str, str]:
        """As strings: lists and objects are JSON text."""
        return {key: value if isinstance(value, str) else json.dumps(value) for key, value in self.facts.items()}

    @classmethod
    def of(cls, metadata: Mapping[str, str]) -> About:
        """What `metadata` made. Raises ValueError, KeyError or TypeError for anything else."""
        found = cls()
        found.facts = {fact: json.loads(metadata[fact]) for fact in cls.BY_NAME}
        found.facts |= {fact: metadata[fact] for fact in ("model", "dtype")}
        found.facts["levels"] = json.loads(metadata["levels"])
        if not all(isinstance(found.facts[fact], dict) for fact in cls.BY_NAME):
            raise TypeError("facts by name are objects")
        return found


def _of_all(embedding: Embedding) -> dict[str, Any]:
    levels = [level._asdict() for level in embedding.levels]
    return {"model": embedding.model, "dtype": embedding.dtype, "levels": levels}


def safetensors_header(entries: Sequence[tuple[str, npt.NDArray[Any]]], metadata: Mapping[str, str]) -> bytes:
    """Length and header for arrays that follow in this order; padded so that they begin aligned."""
    tensors, at = {}, 0
    for name, array in entries:
        tensors[name] = Tensor.of(array, at)
        at = tensors[name].stop
    return write_header(tensors, metadata)


def write_header(tensors: Mapping[str, Tensor], metadata: Mapping[str, str], room: int = 0) -> bytes:
    """Length and header; padded so that tensors begin aligned, and to `room` bytes at least."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    for name, tensor in tensors.items():
        offsets = [tensor.start, tensor.stop]
        header[name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": offsets}
    text = json.dumps(header, separators=(",", ":")).encode()
    length = max(len(text) + -len(text) % _ALIGNMENT, room - _LENGTH.size)
    return _LENGTH.pack(length) + text.ljust(length)


def read_header(read: Any) -> tuple[dict[str, Tensor], dict[str, str], int]:
    """Tensors, metadata, and where the tensors' bytes begin. Raises ValueError for what is no such header."""
    try:
        (length,) = _LENGTH.unpack(read(_LENGTH.size))
        if length > MAX_HEADER_BYTES:
            raise ValueError(f"a header of {length} bytes")
        header = json.loads(read(length))
        metadata = header.pop("__metadata__", {})
        tensors = {
            name: Tensor(entry["dtype"], tuple(entry["shape"]), *map(int, entry["data_offsets"]))
            for name, entry in header.items()
        }
    except (struct.error, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"no header of a .safetensors: {error}") from None
    return tensors, metadata, _LENGTH.size + length


def room_for(names: Iterable[str], about: About, more: Mapping[str, str]) -> int:
    """Bytes that length and header never exceed for pictures of these names, whatever their sizes."""
    facts = about.facts
    longest = About()
    longest.facts |= {fact: facts[fact] for fact in About.OF_ALL if fact in facts}
    digest, tensors = "f" * 64, {}
    for name in names:
        tensors[name] = Tensor("BF16", (_LARGEST, _LARGEST), _LARGEST, _LARGEST)
        of_one = ([_LARGEST] * 3, _LARGEST, digest, digest)
        for fact, value in zip(About.BY_NAME, of_one, strict=True):
            longest.facts[fact][name] = value
    size = len(write_header(tensors, longest.metadata() | dict(more)))
    return size + -size % 4096


def bytes_of(array: npt.NDArray[Any]) -> memoryview:
    """An array's bytes in one row; by way of uint8, since Python's buffers do not know bfloat16."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
