"""Two checkpoints of the same sizes and times are told apart by what is in their towers."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from foveal.families.fingerprint import fingerprint

Make = Callable[..., str]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """The fingerprint of a folder with these tensors, all files of one time."""

    def made(changed: str = "") -> str:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        (folder / "config.json").write_text("{}")
        values = {"visual.blocks.0.weight": 1.0, "visual.merger.weight": 2.0, "lm_head.weight": 3.0}
        if changed:
            values[changed] += 1
        tensors = {name: np.full((64, 64), value, np.float32) for name, value in values.items()}
        save_file(tensors, folder / "model.safetensors")
        for path in folder.iterdir():
            os.utime(path, (0, 0))
        return fingerprint(folder)

    return made


def test_equal_folders_are_equal(make: Make) -> None:
    assert make() == make()


@pytest.mark.parametrize("tensor", ["visual.blocks.0.weight", "visual.merger.weight"])
def test_another_tensor_of_the_tower_is_seen_though_size_and_time_are_the_same(make: Make, tensor: str) -> None:
    assert make() != make(tensor)


def test_the_language_models_tensors_are_not_looked_into(make: Make) -> None:
    assert make() == make("lm_head.weight")


def test_time_config_and_a_tensor_without_vision_in_its_name_count_too(tmp_path: Path) -> None:
    found = set()
    for value, config, time in ((1.0, "{}", 0), (2.0, "{}", 0), (1.0, "{ }", 0), (1.0, "{}", 1)):
        save_file({"encoder.weight": np.full((8, 8), value, np.float32)}, tmp_path / "model.safetensors")
        (tmp_path / "config.json").write_text(config)
        os.utime(tmp_path / "model.safetensors", (time, time))
        found.add(fingerprint(tmp_path))
    assert len(found) == 4


@pytest.mark.parametrize(
    "content", [b"", b"\xff" * 20, b"\x02" + bytes(7) + b"[]", b"\x10" + bytes(7) + b'{"a": {}}       ']
)
def test_a_damaged_file_is_its_readers_to_refuse(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    assert fingerprint(tmp_path).startswith("local-")
