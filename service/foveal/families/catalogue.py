"""From what `--model` says to a `ModelSpec`: a folder, a hub id or a built-in; then the family by config.json."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

from foveal.errors import ConfigurationError
from foveal.families import clip, dinov2, qwen2_vl, qwen3_vl, siglip, siglip2_naflex
from foveal.families.checkpoint import Checkpoint, open_checkpoint
from foveal.families.explain import unknown_type
from foveal.families.hub import Repository
from foveal.families.listing import LISTING
from foveal.families.spec import ModelSpec
from foveal.families.weights_at_start import check_weights

ReadSpec = Callable[[str, Checkpoint], ModelSpec]
_READERS: tuple[tuple[tuple[str, ...], ReadSpec], ...] = (
    (qwen2_vl.QWEN2_TYPES, qwen2_vl.read_qwen2),
    (qwen2_vl.QWEN2_5_TYPES, qwen2_vl.read_qwen2_5),
    (qwen3_vl.QWEN3_TYPES, qwen3_vl.read_qwen3),
    (qwen3_vl.QWEN3_5_TYPES, qwen3_vl.read_qwen3_5),
    (qwen3_vl.QWEN3_OMNI_TYPES, qwen3_vl.read_qwen3_omni),
    (clip.MODEL_TYPES, clip.read_spec),
    (siglip.MODEL_TYPES, siglip.read_spec),
    (siglip2_naflex.MODEL_TYPES, siglip2_naflex.read_spec),
    (dinov2.MODEL_TYPES, dinov2.read_spec),
)
FAMILIES: dict[str, ReadSpec] = {model_type: read for model_types, read in _READERS for model_type in model_types}
"""By `model_type` of config.json."""
_WRONG_KIND = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError)
"""What a value of the wrong kind ends in where no check of ours names it: the files are a stranger's."""
_BUILTIN = "builtin:"
_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")
_ADDRESS = re.compile(r"(?:https?://[^/]+/|hf://)([\w.-]+/[\w.-]+)")


def builtins() -> list[str]:
    """Names that `builtin:` takes."""
    return sorted(p.name for p in _builtin_root().iterdir() if (p / "config.json").exists())


def is_hub_id(model: str) -> bool:
    """True for what must be looked up on the hub: neither a built-in nor a path."""
    looks_like_path = model.startswith((".", "/", "~")) or Path(model).exists()
    return not model.startswith(_BUILTIN) and not looks_like_path and bool(_HUB_ID.fullmatch(model))


def local_spec(model: str, dummy_weights: bool, served_name: str | None = None) -> ModelSpec:
    """The spec of a built-in or a local folder. Reads small files, and of weights which there are."""
    if model.startswith(_BUILTIN):
        name = model.removeprefix(_BUILTIN)
        if name not in builtins():
            raise ConfigurationError(f"there is no {model}; built-in models: {', '.join(builtins())}")
        checkpoint = open_checkpoint(_builtin_root() / name, dummy_weights=True)
        return spec_of(served_name or model, checkpoint)
    folder = Path(model).expanduser()
    if not model or not folder.is_dir():
        raise ConfigurationError(f"--model {model}: {_no_folder(model, folder)}")
    checkpoint = open_checkpoint(folder.resolve(), dummy_weights)
    spec = spec_of(served_name or folder.resolve().name, checkpoint)
    if not dummy_weights:
        check_weights(checkpoint, spec.tower.names)
    return spec


def _no_folder(model: str, folder: Path) -> str:
    """What else a name is that is neither a folder, a hub id nor a built-in."""
    address = _ADDRESS.match(model)
    if address:
        return f"give the hub id alone: --model {address[1]}"
    if folder.is_file():
        return f"this is a file: give the folder that it lies in, --model {folder.parent}"
    if "@" in model and _HUB_ID.fullmatch(model.partition("@")[0]):
        return f"a revision is given apart: --model {model.partition('@')[0]} --revision {model.partition('@')[2]}"
    return "there is no such folder, hub id or built-in model"


def hub_spec(model: str, dummy_weights: bool, served_name: str | None = None, revision: str | None = None) -> ModelSpec:
    """The spec of a hub id: fetches its small files, then the weights of its tower alone.

    Blocks; offline variables of huggingface_hub are respected. Raises ConfigurationError.
    """
    repository = Repository(model, revision)
    folder = repository.small_files()
    checkpoint = open_checkpoint(folder, dummy_weights, revision=folder.name)
    spec = spec_of(served_name or model, checkpoint)
    if dummy_weights:
        return spec
    folder = repository.weights(checkpoint, spec.tower.names)
    check_weights(replace(checkpoint, folder=folder), spec.tower.names)
    return replace(spec, folder=folder)


def spec_of(name: str, checkpoint: Checkpoint) -> ModelSpec:
    """Let the family that config.json names read the rest."""
    model_type = checkpoint.config.get("model_type")
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        raise unknown_type(str(checkpoint.folder), checkpoint.config, [family.name for family in LISTING])
    try:
        return FAMILIES[model_type](name, checkpoint)
    except _WRONG_KIND as error:
        raise ConfigurationError(
            f"{checkpoint.folder}: config.json or the image processor's file has a value of a wrong kind "
            f"({type(error).__name__}: {error})"
        ) from None


def _builtin_root() -> Path:
    return Path(str(files("foveal"))) / "builtin"
