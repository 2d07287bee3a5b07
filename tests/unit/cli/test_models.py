"""`foveal models` says what can be served, for people and for programs, without loading anything."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from foveal.cli import main
from foveal.families.catalogue import FAMILIES, builtins


def test_every_family_and_built_in_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models"]) == 0
    said = capsys.readouterr().out
    for name in [*FAMILIES, *(f"builtin:{builtin}" for builtin in builtins())]:
        assert name in said


def test_values_stand_below_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    main(["models"])
    blocks = capsys.readouterr().out.split("\n\n")[:-1]
    columns = {len(line) - len(line[15:].lstrip()) for block in blocks for line in block.splitlines()[1:]}
    assert len(blocks) > 3 and columns == {15}


def test_programs_get_objects(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "--json"]) == 0
    families = json.loads(capsys.readouterr().out)
    assert {model_type for family in families for model_type in family["model_types"]} == set(FAMILIES)
    assert {name for family in families for name in family["builtins"]} == {f"builtin:{name}" for name in builtins()}


def test_nothing_heavy_is_imported() -> None:
    code = "import sys; from foveal.cli import main; main(['models']); "
    code += "sys.exit(bool({'torch', 'PIL', 'fastapi', 'pydantic'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL).returncode == 0
