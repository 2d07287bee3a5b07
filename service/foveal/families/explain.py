"""Says what a folder or repository is that is no checkpoint of ours, and where a checkpoint may be meant."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from foveal.errors import ConfigurationError
from foveal.families.weight_files import named

CONFIG = "config.json"
_MAKERS: dict[str, str] = {
    "adapter_config.json": "an adapter (LoRA): merge it into its base model, save that and serve it",
    "open_clip_config.json": "open_clip's format: serve the same model in transformers' format",
    "params.json": "a maker's own format: serve the repository in transformers' format",
}
"""Files that tell other formats."""
_TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt", "special_tokens_map.json")


def names_in(folder: Path) -> list[str]:
    """A folder's files and those of its folders, relative to it; as a hub lists them, but no deeper."""
    found = [path for path in folder.iterdir() if path.is_file()]
    for below in folder.iterdir():
        if below.is_dir() and not below.name.startswith("."):
            found += [path for path in below.iterdir() if path.is_file()]
    return sorted(path.relative_to(folder).as_posix() for path in found)


def no_config(where: str, names: Collection[str], is_hub: bool = False) -> ConfigurationError:
    """An error about a checkpoint without config.json, for the caller to raise."""
    start = f"{where}/{CONFIG} is missing: --model wants a checkpoint of Hugging Face's transformers"
    below = sorted(str(PurePosixPath(name).parent) for name in names if PurePosixPath(name).name == CONFIG)
    maker = next((text for file, text in _MAKERS.items() if file in names), None)
    gguf = [name for name in names if name.endswith(".gguf")]
    if below:
        text = (
            f"; {_layout(names)} with {named([f'{part}/{CONFIG}' for part in below])}: {_serve(where, below, is_hub)}"
        )
    elif gguf:
        text = f"; {named(gguf)} is llama.cpp's format: serve the checkpoint that it was made from"
    elif maker:
        text = f"; this is {maker}"
    elif not names:
        text = "; it is empty"
    elif all(name in _TOKENIZER or name.endswith((".md", ".txt")) for name in names):
        text = f"; there is a tokenizer only ({named(names)})"
    else:
        text = f"; there is {named(names)}"
    return ConfigurationError(start + text)


def _layout(names: Collection[str]) -> str:
    if "model_index.json" in names:
        return "it is a diffusers pipeline"
    return "it is laid out for sentence-transformers" if "modules.json" in names else "there are folders"


def _serve(where: str, below: list[str], is_hub: bool) -> str:
    likely = next((part for part in below if "image" in part or "vision" in part or "CLIP" in part), below[0])
    if is_hub:
        return f"run `hf download {where} --include '{likely}/*' --local-dir FOLDER` and serve --model FOLDER/{likely}"
    return f"serve --model {where}/{likely}"


def unknown_type(where: str, config: Mapping[str, Any], known: Collection[str]) -> ConfigurationError:
    """An error about a `model_type` that no family serves, for the caller to raise."""
    model_type, architectures = config.get("model_type"), config.get("architectures")
    named_class = f" ({architectures[0]})" if isinstance(architectures, list) and architectures else ""
    sees = [key for key in config if "vision" in str(key) or key in ("image_size", "patch_size", "thinker_config")]
    if "_class_name" in config:
        kind = f"is a diffusers {config['_class_name']!r}, no checkpoint of transformers"
    elif model_type is None:
        kind = "has no model_type: it is no config of transformers"
    elif sees:
        kind = f"is a {model_type!r} checkpoint{named_class}: a vision model of a family that is not served"
    else:
        kind = f"is a {model_type!r} checkpoint{named_class}: a model of text only, without a vision tower"
    return ConfigurationError(
        f"{where}/{CONFIG} {kind}; known families: {', '.join(sorted(known))} (`foveal models` says more)"
    )
