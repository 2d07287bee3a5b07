"""From the safetensors files of a Hugging Face folder to the tensors of a vision tower.

Only the tower's tensors are read, and only the files that hold some. The tower says what it wants; a folder that
lacks one, has one of another shape, or has one that the tower does not know is refused: half-loaded weights would
give embeddings that look right.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from foveal.errors import ConfigurationError

PREFIXES = ("model.visual.", "visual.")
"""Of the tower's tensors in a file that holds the language model too; newer files have the longer one."""
RECOMPUTED = ("rotary_pos_emb.inv_freq",)
"""Constants that some files carry although config.json decides them."""
MAX_NAMED = 3


def read_weights(folder: Path, wanted: Mapping[str, torch.Size]) -> dict[str, torch.Tensor]:
    """The wanted tensors by their names without prefix; raises ConfigurationError when they are not all there."""
    found: dict[str, torch.Tensor] = {}
    for path, names in _tower_files(folder).items():
        found |= _read_file(path, names)
    _compare(folder, wanted, found)
    return found


def tower_name(name: str) -> str | None:
    """A tensor's name within the tower; None if it belongs to something else."""
    for prefix in PREFIXES:
        if name.startswith(prefix):
            return name.removeprefix(prefix)
    return None


def _tower_files(folder: Path) -> dict[Path, list[str]]:
    """The files with tensors of the tower, and which."""
    index, single = folder / "model.safetensors.index.json", folder / "model.safetensors"
    if index.exists():
        places = _read_index(index)
    elif single.exists():
        places = dict.fromkeys(_names(single), single.name)
    else:
        raise ConfigurationError(f"{folder} has no model.safetensors and no model.safetensors.index.json")
    files: dict[Path, list[str]] = {}
    for name, file in places.items():
        if tower_name(name) is not None:
            files.setdefault(folder / file, []).append(name)
    return files


def _read_index(path: Path) -> dict[str, str]:
    try:
        places = json.loads(path.read_bytes())["weight_map"]
        # a shard lies beside its index: what points elsewhere was not written by a checkpoint's author
        if all(Path(file).name == file for file in places.values()):
            return dict(places)
    except (ValueError, TypeError, KeyError, AttributeError, OSError) as error:
        raise ConfigurationError(f"{path} cannot be read: {type(error).__name__} {error}") from None
    raise ConfigurationError(f"{path} names a file outside its folder")


def _names(path: Path) -> list[str]:
    try:
        with safe_open(path, framework="pt") as file:
            return list(file.keys())
    except (SafetensorError, OSError) as error:
        raise ConfigurationError(f"{path} cannot be read: {error}") from None


def _read_file(path: Path, names: Iterable[str]) -> dict[str, torch.Tensor]:
    try:
        with safe_open(path, framework="pt") as file:
            return {tower_name(name) or name: file.get_tensor(name) for name in names}
    except (SafetensorError, OSError) as error:
        raise ConfigurationError(f"{path} cannot be read: {error}") from None


def _compare(folder: Path, wanted: Mapping[str, torch.Size], found: Mapping[str, torch.Tensor]) -> None:
    missing = [name for name in wanted if name not in found]
    unknown = [name for name in found if name not in wanted and name not in RECOMPUTED]
    other = [
        f"{n} {list(found[n].shape)}, not {list(s)}" for n, s in wanted.items() if n in found and found[n].shape != s
    ]
    quantized = [f"{n} {t.dtype}" for n, t in found.items() if n in wanted and not t.dtype.is_floating_point]
    complaints = {"missing": missing, "of another shape": other, "unknown": unknown, "not floating point": quantized}
    told = [f"{len(names)} {what} ({_first(names)})" for what, names in complaints.items() if names]
    if told:
        raise ConfigurationError(
            f"the weights in {folder} do not fit its config.json: of the vision tower's tensors, {'; '.join(told)}"
        )


def _first(names: list[str]) -> str:
    return ", ".join(names[:MAX_NAMED]) + (", ..." if len(names) > MAX_NAMED else "")
