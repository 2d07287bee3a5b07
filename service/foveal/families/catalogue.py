"""From what `--model` says to a `ModelSpec`: a folder, a hub id or a built-in; then the family by config.json."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

from foveal.errors import ConfigurationError
from foveal.families import qwen3_vl
from foveal.families.checkpoint import Checkpoint, open_checkpoint
from foveal.families.spec import ModelSpec

FAMILIES: dict[str, Callable[[str, Checkpoint], ModelSpec]] = {
    model_type: qwen3_vl.read_spec for model_type in qwen3_vl.MODEL_TYPES
}
WANTED_FILES = ["config.json", "preprocessor_config.json", "*.safetensors", "*.safetensors.index.json"]
_BUILTIN = "builtin:"
_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")


def builtins() -> list[str]:
    """Names that `builtin:` takes."""
    return sorted(p.name for p in _builtin_root().iterdir() if (p / "config.json").exists())


def is_hub_id(model: str) -> bool:
    """True for what must be looked up on the hub: neither a built-in nor a path."""
    looks_like_path = model.startswith((".", "/", "~")) or Path(model).exists()
    return not model.startswith(_BUILTIN) and not looks_like_path and bool(_HUB_ID.fullmatch(model))


def local_spec(model: str, dummy_weights: bool, served_name: str | None = None) -> ModelSpec:
    """The spec of a built-in or a local folder. Reads small files only."""
    if model.startswith(_BUILTIN):
        name = model.removeprefix(_BUILTIN)
        if name not in builtins():
            raise ConfigurationError(f"there is no {model}; built-in models: {', '.join(builtins())}")
        checkpoint = open_checkpoint(_builtin_root() / name, dummy_weights=True)
        return spec_of(served_name or model, checkpoint)
    folder = Path(model).expanduser()
    if not folder.is_dir():
        raise ConfigurationError(f"--model {model}: there is no such folder, hub id or built-in model")
    return spec_of(served_name or folder.resolve().name, open_checkpoint(folder.resolve(), dummy_weights))


def hub_spec(model: str, dummy_weights: bool, served_name: str | None = None) -> ModelSpec:
    """Download a hub id (blocking; offline variables of huggingface_hub are respected) and read its spec."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    wanted = WANTED_FILES[:2] if dummy_weights else WANTED_FILES
    try:
        folder = Path(snapshot_download(model, allow_patterns=wanted))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError, ValueError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ConfigurationError(f"--model {model}: the hub gave no such model: {reason}") from None
    return spec_of(served_name or model, open_checkpoint(folder, dummy_weights, revision=folder.name))


def spec_of(name: str, checkpoint: Checkpoint) -> ModelSpec:
    """Let the family that config.json names read the rest."""
    model_type = checkpoint.config.get("model_type")
    if model_type not in FAMILIES:
        raise ConfigurationError(
            f"{checkpoint.folder} is a {model_type!r} checkpoint; known families: {', '.join(sorted(FAMILIES))}"
        )
    return FAMILIES[model_type](name, checkpoint)


def _builtin_root() -> Path:
    return Path(str(files("foveal"))) / "builtin"
