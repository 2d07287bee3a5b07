"""Where `foveal encode` puts embeddings: one .safetensors for all, or a file for each picture.

Files appear under their name only when they are complete, with the permissions that the umask gives.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np
import numpy.typing as npt

from foveal_client import Embedding

_DTYPE_NAMES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32", "int64": "I64"}
_ALIGNMENT = 8
_COPY_BYTES = 16 * 1024 * 1024


class Output(Protocol):
    """Takes embeddings one by one, then is finished once or closed without."""

    def add(self, name: str, embedding: Embedding) -> None:
        """Keep one picture's embedding. Raises OSError, or ValueError for one that does not belong to the others."""

    def finish(self) -> None:
        """Write what describes all of them. Raises OSError."""

    def close(self) -> None:
        """Let go of temporary files."""


class OneFile:
    """One .safetensors: a tensor for each picture, by its name; grids, hashes and levels in `__metadata__`.

    The header of the format comes first but is known last, so the tensors wait in a temporary file beside.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._tensors = tempfile.TemporaryFile(dir=path.parent)  # noqa: SIM115 - closed by close()
        self._entries: list[tuple[str, npt.NDArray[Any]]] = []
        self._about = About()

    def add(self, name: str, embedding: Embedding) -> None:
        """Append one tensor."""
        self._about.add(name, embedding)
        self._tensors.write(_bytes_of(embedding.values))
        # The header needs dtype and shape only; a broadcast scalar has both and keeps no memory.
        self._entries.append((name, np.broadcast_to(np.zeros((), embedding.values.dtype), embedding.shape)))

    def finish(self) -> None:
        """Put header and tensors together. Without any picture there is no file."""
        if not self._entries:
            return
        self._tensors.seek(0)
        with _replacing(self._path) as file:
            file.write(safetensors_header(self._entries, self._about.metadata()))
            shutil.copyfileobj(self._tensors, file, _COPY_BYTES)

    def close(self) -> None:
        """Remove the temporary file."""
        self._tensors.close()


class Folder:
    """A file for each picture, NAME + suffix, and `manifest.json` which describes them all."""

    def __init__(self, folder: Path, suffix: str, write: Callable[[IO[bytes], Embedding], None]) -> None:
        self._folder, self._suffix, self._write = folder, suffix, write
        self._about = About()
        folder.mkdir(parents=True, exist_ok=True)

    def add(self, name: str, embedding: Embedding) -> None:
        """Write one file, in folders like the picture's."""
        self._about.add(name, embedding)
        path = self._folder / (name + self._suffix)
        path.parent.mkdir(parents=True, exist_ok=True)
        with _replacing(path) as file:
            self._write(file, embedding)

    def finish(self) -> None:
        """Write the manifest."""
        with _replacing(self._folder / "manifest.json") as file:
            file.write(json.dumps(self._about.facts, indent=1).encode())

    def close(self) -> None:
        """Nothing is held open between pictures."""


class About:
    """What must travel with values: model, dtype and levels of all; grid, tokens, hash and key by name."""

    def __init__(self) -> None:
        self.facts: dict[str, Any] = {"grid_thw": {}, "tokens": {}, "sha256": {}, "keys": {}}

    def add(self, name: str, embedding: Embedding) -> None:
        """Note one picture. Raises ValueError when the server serves another model than before."""
        model = self.facts.setdefault("model", embedding.model)
        if model != embedding.model:
            raise ValueError(f"the server now has {embedding.model}, the pictures before were encoded by {model}")
        self.facts["dtype"] = embedding.dtype
        self.facts["levels"] = [level._asdict() for level in embedding.levels]
        self.facts["grid_thw"][name] = list(embedding.grid_thw)
        self.facts["tokens"][name] = embedding.tokens
        self.facts["sha256"][name] = embedding.sha256
        self.facts["keys"][name] = embedding.key

    def metadata(self) -> dict[str, str]:
        """As strings: lists and objects are JSON text."""
        return {key: value if isinstance(value, str) else json.dumps(value) for key, value in self.facts.items()}


def write_answer(file: IO[bytes], embedding: Embedding) -> None:
    """One picture in the form of the server's own answer: `image.0`, `grid_thw`, and the same metadata."""
    grid = np.array([embedding.grid_thw], np.int64)
    about = {
        "sha256": [embedding.sha256],
        "keys": [embedding.key],
        "levels": [level._asdict() for level in embedding.levels],
        "usage": {"images": 1, "patches": embedding.grid_thw.num_patches, "tokens": embedding.tokens},
        "tokens": [embedding.tokens],
    }
    metadata = {"model": embedding.model, "dtype": embedding.dtype} | {k: json.dumps(v) for k, v in about.items()}
    file.write(safetensors_header([("grid_thw", grid), ("image.0", embedding.values)], metadata))
    file.write(_bytes_of(grid))
    file.write(_bytes_of(embedding.values))


def write_npy(file: IO[bytes], embedding: Embedding) -> None:
    """NumPy's own format, which has no bfloat16: such values are widened to float32, without loss."""
    values = embedding.numpy(np.float32) if embedding.dtype == "bfloat16" else embedding.values
    np.save(file, values, allow_pickle=False)


def write_npy_bits(file: IO[bytes], embedding: Embedding) -> None:
    """As `write_npy`, but bfloat16 keeps its 16 bits, as uint16."""
    values = embedding.values.view(np.uint16) if embedding.dtype == "bfloat16" else embedding.values
    np.save(file, values, allow_pickle=False)


def safetensors_header(entries: Sequence[tuple[str, npt.NDArray[Any]]], metadata: Mapping[str, str]) -> bytes:
    """Length and header for tensors that follow in this order; padded so that they begin aligned."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    at = 0
    for name, array in entries:
        offsets = [at, at + array.nbytes]
        header[name] = {"dtype": _DTYPE_NAMES[array.dtype.name], "shape": list(array.shape), "data_offsets": offsets}
        at = offsets[1]
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return struct.pack("<Q", len(text)) + text


def _bytes_of(array: npt.NDArray[Any]) -> memoryview:
    # By way of uint8, since Python's buffers do not know bfloat16.
    return np.ascontiguousarray(array).view(np.uint8).data


@contextmanager
def _replacing(path: Path) -> Iterator[IO[bytes]]:
    """A file that takes its name when it is complete, and is removed when it is not."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            yield file
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
