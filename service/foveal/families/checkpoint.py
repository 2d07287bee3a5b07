"""Reads a Hugging Face checkpoint folder's JSON files: no weights, no torch, no guessing of constants."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast, get_args

from foveal.errors import ConfigurationError
from foveal.types import DType


@dataclass(frozen=True)
class Checkpoint:
    """config.json and preprocessor_config.json of one folder."""

    folder: Path
    config: dict[str, Any]
    processor: dict[str, Any]
    revision: str
    dummy_weights: bool

    @property
    def architecture(self) -> str:
        """The class that the checkpoint says it is."""
        return str((self.config.get("architectures") or ["unknown"])[0])

    def section(self, name: str) -> dict[str, Any]:
        """A nested config, or a ConfigurationError that names it."""
        return cast(dict[str, Any], self.need(self.config, name))

    def need(self, config: dict[str, Any], key: str) -> Any:
        """A value that must be there: constants never come from defaults."""
        if key not in config:
            raise ConfigurationError(f"{self.folder}/config.json has no {key!r}")
        return config[key]


def open_checkpoint(folder: Path, dummy_weights: bool, revision: str | None = None) -> Checkpoint:
    """Read the folder's JSON files; raises ConfigurationError when one is missing or is no JSON object."""
    config, processor = (_read(folder / name) for name in ("config.json", "preprocessor_config.json"))
    return Checkpoint(folder, config, processor, revision or _fingerprint(folder), dummy_weights)


def _read(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise ConfigurationError(f"{path} is missing: --model wants a Hugging Face checkpoint folder") from None
    except (ValueError, OSError) as error:
        raise ConfigurationError(f"{path} cannot be read: {error}") from None
    if not isinstance(value, dict):
        raise ConfigurationError(f"{path} is no JSON object")
    return value


def _fingerprint(folder: Path) -> str:
    """A name for what lies in a local folder: its JSON files, and names, sizes and times of its weights.

    Enough to keep cached embeddings of two local checkpoints apart without reading gigabytes.
    """
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*")):
        if path.suffix == ".json":
            digest.update(path.name.encode() + path.read_bytes())
        elif path.suffix == ".safetensors":
            stat = path.stat()
            digest.update(f"{path.name} {stat.st_size} {stat.st_mtime_ns}".encode())
    return "local-" + digest.hexdigest()[:16]


def dtype_of(checkpoint: Checkpoint) -> DType:
    """The checkpoint's dtype: newer files say `dtype`, older `torch_dtype`, composites in a nested config."""
    config = checkpoint.config
    places = [config, config.get("text_config") or {}, config.get("vision_config") or {}]
    found = next((p[k] for p in places for k in ("dtype", "torch_dtype") if p.get(k)), "float32")
    if found not in get_args(DType):
        raise ConfigurationError(f"{checkpoint.folder}/config.json has dtype {found!r}; known: {get_args(DType)}")
    return cast(DType, found)


def triple(checkpoint: Checkpoint, key: str) -> tuple[float, float, float]:
    """A normalisation constant per channel, from the checkpoint's own file."""
    values = checkpoint.processor.get(key)
    if not isinstance(values, list) or len(values) != 3:
        raise ConfigurationError(f"{checkpoint.folder}/preprocessor_config.json has no {key!r} of three numbers")
    return float(values[0]), float(values[1]), float(values[2])
