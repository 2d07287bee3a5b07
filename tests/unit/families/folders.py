"""Checkpoint folders to spoil: copies of the built-ins."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from foveal.families.catalogue import local_spec
from foveal.families.spec import ModelSpec

BUILTIN = Path(__file__).parents[3] / "service/foveal/builtin"
CONFIG, PROCESSOR = "config.json", "preprocessor_config.json"


def copied(builtin: str, folder: Path) -> Path:
    """A folder with the files of a built-in."""
    for path in (BUILTIN / builtin).glob("*.json"):
        (folder / path.name).write_bytes(path.read_bytes())
    return folder


def change(path: Path, **values: Any) -> None:
    """Set keys of a JSON file; None takes one away."""
    content = json.loads(path.read_text())
    for name, value in values.items():
        content.pop(name, None) if value is None else content.update({name: value})
    path.write_text(json.dumps(content))


def change_vision(folder: Path, **values: Any) -> None:
    """The same in the nested vision config."""
    vision = json.loads((folder / CONFIG).read_text())["vision_config"] | values
    change(folder / CONFIG, vision_config={name: value for name, value in vision.items() if value is not None})


def read(folder: Path) -> ModelSpec:
    """The spec of a folder without weights."""
    return local_spec(str(folder), dummy_weights=True)
