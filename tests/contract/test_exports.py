"""The public names of the SDK, and that importing it stays cheap."""

from __future__ import annotations

import subprocess
import sys
from importlib.resources import files

import foveal_client
from foveal_client import _errors


def test_all_is_exactly_what_is_exported() -> None:
    public = {name for name in vars(foveal_client) if not name.startswith("_")}
    assert public == set(foveal_client.__all__)
    assert len(foveal_client.__all__) == len(public)


def test_every_error_of_the_tree_is_exported() -> None:
    errors = {name for name, value in vars(_errors).items() if isinstance(value, type) and name.isidentifier()}
    assert {name for name in errors if issubclass(getattr(_errors, name), Exception)} <= set(foveal_client.__all__)


def test_the_tree_at_the_top_of_the_errors_file_names_every_class() -> None:
    assert _errors.__doc__ is not None
    drawn = {line.replace("│", "").strip().removeprefix("├── ").removeprefix("└── ").split()[0] for line in _tree()}
    classes = {name for name, value in vars(_errors).items() if isinstance(value, type)}
    assert drawn == {name for name in classes if issubclass(getattr(_errors, name), _errors.FovealError)}


def _tree() -> list[str]:
    lines = (_errors.__doc__ or "").splitlines()
    return [line for line in lines if line.startswith(("FovealError", "├", "│", "└", "    "))]


def test_types_are_shipped() -> None:
    assert (files(foveal_client) / "py.typed").is_file()


def test_importing_the_sdk_pulls_in_nothing_heavy() -> None:
    program = "import sys, foveal_client; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    heavy = {"torch", "fastapi", "PIL", "pydantic", "starlette", "transformers", "foveal"}
    assert "foveal_client" in found
    assert not heavy & set(found)
