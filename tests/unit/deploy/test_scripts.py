"""Scripts that need more than every machine has say so in one sentence, and end well."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
USUAL = (
    *(
        "bash",
        "sh",
        "env",
        "dirname",
        "basename",
        "id",
        "mktemp",
        "rm",
        "mkdir",
        "chmod",
        "cat",
        "cp",
        "install",
        "true",
    ),
    *("sed", "grep", "head", "tail", "sort", "find", "xargs", "umount", "timeout", "sleep"),
)


@pytest.fixture
def bare(tmp_path: Path) -> dict[str, str]:
    """The environment of a machine without Debian's tools, an engine or promtool."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in USUAL:
        if (found := shutil.which(name)) is not None:
            (folder / name).symlink_to(found)
    return {"PATH": str(folder), "IMAGES_WORK": str(tmp_path / "work"), "TMPDIR": str(tmp_path)}


def test_images_are_left_out_with_a_sentence_where_no_engine_can_be_had(bare: dict[str, str]) -> None:
    done = subprocess.run([ROOT / "deploy/images/run.sh"], env=bare, capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr == ""
    (line,) = done.stdout.splitlines()
    assert line.startswith("images are neither built nor run here: it takes ")


def test_a_missing_promtool_is_told_in_a_sentence(bare: dict[str, str], tmp_path: Path) -> None:
    done = subprocess.run([ROOT / "deploy/promtool.sh", str(tmp_path)], env=bare, capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr == ""
    (line,) = done.stdout.splitlines()
    assert line.startswith("promtool 3 cannot be had here (") and "()" not in line
