"""Reads a Hugging Face checkpoint folder's JSON files: no weights, no torch."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast, get_args

from foveal.errors import ConfigurationError
from foveal.families.explain import CONFIG, names_in, no_config
from foveal.families.fingerprint import fingerprint
from foveal.families.weight_files import refuse_pointer
from foveal.types import DType

PROCESSOR_FILES = ("processor_config.json", "preprocessor_config.json")
"""Where an image processor's settings may be: nested in the first, or all of the second. The first wins, if nested."""


@dataclass(frozen=True)
class Checkpoint:
    """config.json and the settings of the image processor of one folder."""

    folder: Path
    config: dict[str, Any]
    processor: dict[str, Any]
    processor_file: str
    """Name of the file that `processor` comes from."""
    revision: str
    dummy_weights: bool

    @property
    def architecture(self) -> str:
        """The class that the checkpoint says it is."""
        named = self.config.get("architectures")
        return str(named[0]) if isinstance(named, list) and named else "unknown"

    def refuse_processor(self, complaint: str) -> ConfigurationError:
        """An error about the image processor's settings, for the caller to raise."""
        return ConfigurationError(f"{self.folder / self.processor_file} {complaint}")


def open_checkpoint(folder: Path, dummy_weights: bool, revision: str | None = None) -> Checkpoint:
    """Read the folder's JSON files; raises ConfigurationError when one is missing or is no JSON object."""
    if not (folder / CONFIG).exists():
        raise no_config(str(folder), names_in(folder)) if folder.is_dir() else _gone(folder)
    config = _read(folder / CONFIG)
    processor, file = _read_processor(folder)
    return Checkpoint(folder, config, processor, file, revision or fingerprint(folder), dummy_weights)


def _gone(folder: Path) -> ConfigurationError:
    return ConfigurationError(f"{folder / CONFIG} is missing: there is no folder {folder}")


def _read_processor(folder: Path) -> tuple[dict[str, Any], str]:
    """The image processor's settings and the name of their file, in transformers' order of preference."""
    nested, whole = PROCESSOR_FILES
    if (folder / nested).exists():
        section = _read(folder / nested).get("image_processor")
        if isinstance(section, dict):
            return section, nested
    if not (folder / whole).exists():
        has = f"{nested} has no image_processor" if (folder / nested).exists() else f"there is no {nested} either"
        raise ConfigurationError(
            f"{folder / whole} is missing, and {has}: one of them says how pictures are resized and normalised, and "
            "guesses would give other embeddings; copy it from the model that this one was made of (transformers: "
            "AutoImageProcessor.from_pretrained(BASE).save_pretrained(FOLDER))"
        )
    return _read(folder / whole), whole


def _read(path: Path) -> dict[str, Any]:
    refuse_pointer(path)
    try:
        content = path.read_bytes()
        value = json.loads(content)
    except (ValueError, OSError, RecursionError) as error:
        raise ConfigurationError(f"{path} cannot be read: {error}{_likely(path)}") from None
    if not isinstance(value, dict):
        raise ConfigurationError(f"{path} is no JSON object, as which transformers saves it: fetch it again")
    return value


def _likely(path: Path) -> str:
    """Why a file is no JSON, where its first bytes tell."""
    try:
        start = path.read_bytes()[:16].lstrip()
    except OSError:
        return ""
    if not start:
        return "; it is empty: was a download cut? Fetch it again"
    return "; it is a web page: was a login needed? Fetch it again" if start.startswith(b"<") else "; fetch it again"


def dtype_of(checkpoint: Checkpoint) -> DType:
    """The checkpoint's dtype: newer files say `dtype`, older `torch_dtype`, composites in a nested config."""
    config = checkpoint.config
    thinker = config.get("thinker_config") or {}
    owners = (config, thinker)
    nested = [owner.get(part) or {} for part in ("text_config", "vision_config") for owner in owners]
    places = [*owners, *nested]
    found = next((p[k] for p in places for k in ("dtype", "torch_dtype") if p.get(k)), "float32")
    found = str(found).removeprefix("torch.")
    if found not in get_args(DType):
        raise ConfigurationError(f"{checkpoint.folder}/config.json has dtype {found!r}; known: {get_args(DType)}")
    return cast(DType, found)
