"""Where `foveal encode` puts embeddings: one .safetensors for all, or a file for each picture.

Files appear under their name only when they are complete, with the permissions that the umask gives.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np

from foveal.cli.encode_header import About, bytes_of, safetensors_header
from foveal.files import replacing
from foveal_client import Embedding

_SUFFIXES = (".safetensors", ".npy")


class Output(Protocol):
    """Takes embeddings one by one, then is finished, or keeps what it has; closed in any case."""

    def add(self, name: str, embedding: Embedding) -> None:
        """Take one picture's embedding. Raises OSError, or ValueError for one that does not belong to the others."""

    def finish(self, num_failures: int) -> str | None:
        """Put everything under its final name; a sentence where that would lose what is there. Raises OSError."""

    def keep(self) -> str | None:
        """The command is stopped: a sentence that says what is kept and where, or None. Raises OSError."""

    def close(self) -> None:
        """Let go of files."""


class Folder:
    """A file for each picture, NAME + suffix, and `manifest.json` which describes them all."""

    def __init__(
        self, folder: Path, suffix: str, write: Callable[[IO[bytes], Embedding], None], options: Mapping[str, Any]
    ) -> None:
        self._folder, self._suffix, self._write = folder, suffix, write
        self._options, self._about = dict(options), About()
        if folder.exists() and not folder.is_dir():
            raise ValueError(f"File exists, and it is no folder: {folder}; choose another --output-dir")
        folder.mkdir(parents=True, exist_ok=True)

    def add(self, name: str, embedding: Embedding) -> None:
        """Write one file, in folders like the picture's."""
        self._about.check(embedding)
        with replacing(self._folder / (name + self._suffix)) as file:
            self._write(file, embedding)
        self._about.add(name, embedding)

    def finish(self, num_failures: int) -> str | None:
        """Write the manifest."""
        return self._describe(is_complete=not num_failures)

    def keep(self) -> str | None:
        """Write the manifest of what there is."""
        if not self._about.facts["keys"]:
            return None
        told = self._describe(is_complete=False)
        return told or f"{len(self._about.facts['keys'])} pictures are in {self._folder}, and in its manifest.json"

    def close(self) -> None:
        """Nothing is held open between pictures."""

    def _describe(self, is_complete: bool) -> str | None:
        """Write the manifest, with what an equal run before had in it; beside it where it tells of more."""
        facts: dict[str, Any] = self._about.facts | {"options": self._options}
        if not facts["keys"]:
            return None
        path, earlier = self._folder / "manifest.json", self._earlier()
        beside = None
        if earlier is not None and _are_alike(earlier, facts):
            facts = self._joined(earlier, facts)
        elif path.exists() and not is_complete:
            path = path.with_name("manifest.json.partial")
            beside = f"manifest.json tells of an earlier run and stays as it was; this one is described in {path}"
        with replacing(path) as file:
            file.write(json.dumps(facts, indent=1).encode())
        return beside

    def _earlier(self) -> dict[str, Any] | None:
        try:
            found = json.loads((self._folder / "manifest.json").read_bytes())
        except (FileNotFoundError, ValueError, RecursionError):
            return None
        return found if isinstance(found, dict) and isinstance(found.get("keys"), dict) else None

    def _joined(self, earlier: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
        """Both; of the earlier one what still has a file."""
        there = {
            name for name in earlier["keys"] if any((self._folder / (name + suffix)).is_file() for suffix in _SUFFIXES)
        }
        joined = dict(facts)
        for fact, ours in facts.items():
            if fact in About.BY_NAME:
                theirs = earlier.get(fact)
                kept = theirs.items() if isinstance(theirs, dict) else ()
                joined[fact] = {name: value for name, value in kept if name in there} | ours
        return joined


def _are_alike(earlier: Mapping[str, Any], facts: Mapping[str, Any]) -> bool:
    """True when one manifest can describe both runs."""
    same = all(earlier.get(fact) == facts.get(fact) for fact in About.OF_ALL)
    return same and earlier.get("options", facts["options"]) == facts["options"]


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
    file.write(bytes_of(grid))
    file.write(bytes_of(embedding.values))


def write_npy(file: IO[bytes], embedding: Embedding) -> None:
    """NumPy's own format, which has no bfloat16: such values are widened to float32, without loss."""
    values = embedding.numpy(np.float32) if embedding.dtype == "bfloat16" else embedding.values
    np.save(file, values, allow_pickle=False)


def write_npy_bits(file: IO[bytes], embedding: Embedding) -> None:
    """As `write_npy`, but bfloat16 keeps its 16 bits, as uint16."""
    values = embedding.values.view(np.uint16) if embedding.dtype == "bfloat16" else embedding.values
    np.save(file, values, allow_pickle=False)
