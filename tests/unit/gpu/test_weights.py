"""Checkpoints: both prefixes, shards, only what is needed, and no half-loaded tower."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from foveal.errors import ConfigurationError
from foveal.families.tower_plan import Names
from foveal.gpu.dummy import draw
from foveal.gpu.weights import read_weights, sources_of

SHAPES = {name: torch.Size(shape) for name, shape in {"a.weight": (4, 3), "a.bias": (4,), "b.weight": (2, 4)}.items()}
NAMES = Names(("model.visual.", "visual."), {}, ("rotary_pos_emb.inv_freq",))
TENSORS = {name: draw(name, shape) for name, shape in SHAPES.items()}


def save(path: Path, prefix: str, tensors: dict[str, torch.Tensor]) -> None:
    save_file({prefix + name: tensor.contiguous() for name, tensor in tensors.items()}, path)


def same(found: dict[str, torch.Tensor]) -> bool:
    return found.keys() == TENSORS.keys() and all(torch.equal(found[n], TENSORS[n]) for n in TENSORS)


@pytest.mark.parametrize("prefix", ["model.visual.", "visual."])
def test_either_prefix_is_read_and_the_language_model_is_not(tmp_path: Path, prefix: str) -> None:
    tensors = {prefix + n: t for n, t in TENSORS.items()} | {"model.language_model.norm.weight": torch.ones(3)}
    save_file(tensors, tmp_path / "model.safetensors")
    assert same(read_weights(tmp_path, SHAPES, NAMES))


def write_shards(folder: Path) -> Path:
    places = {}
    for i, name in enumerate(TENSORS):
        save(folder / f"part-{i % 2}.safetensors", "visual.", {n: TENSORS[n] for n in list(TENSORS)[i % 2 :: 2]})
        places[f"visual.{name}"] = f"part-{i % 2}.safetensors"
    places["model.norm.weight"] = "part-2.safetensors"
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": places}))
    return index


def test_only_the_shards_that_hold_the_tower_are_opened(tmp_path: Path) -> None:
    write_shards(tmp_path)
    (tmp_path / "part-2.safetensors").write_bytes(b"the language model, which is not read")
    assert same(read_weights(tmp_path, SHAPES, NAMES))


def test_a_shard_that_is_missing_is_named(tmp_path: Path) -> None:
    write_shards(tmp_path)
    (tmp_path / "part-1.safetensors").unlink()
    with pytest.raises(ConfigurationError, match=r"part-1\.safetensors"):
        read_weights(tmp_path, SHAPES, NAMES)


@pytest.mark.parametrize(
    ("tensors", "complaint"),
    [
        ({"a.weight": torch.ones(4, 3)}, r"2 missing \(a\.bias, b\.weight\)"),
        (TENSORS | {"a.bias": torch.ones(5)}, r"a\.bias \[5\], not \[4\]"),
        (TENSORS | {"c.weight": torch.ones(1)}, r"1 unknown \(c\.weight\)"),
        (TENSORS | {"a.bias": torch.ones(4, dtype=torch.int8)}, r"a\.bias torch\.int8"),
        (TENSORS | {f"c.{i}": torch.ones(1) for i in range(9)}, r"9 unknown \(c\.0, c\.1, c\.2, \.\.\.\)"),
    ],
    ids=["missing", "shape", "unknown", "quantized", "many"],
)
def test_weights_that_do_not_fit_are_refused_by_name(
    tmp_path: Path, tensors: dict[str, torch.Tensor], complaint: str
) -> None:
    save(tmp_path / "model.safetensors", "visual.", tensors)
    with pytest.raises(ConfigurationError, match=complaint):
        read_weights(tmp_path, SHAPES, NAMES)


def test_a_constant_that_the_config_decides_is_passed_over(tmp_path: Path) -> None:
    save(tmp_path / "model.safetensors", "visual.", TENSORS | {"rotary_pos_emb.inv_freq": torch.ones(2)})
    assert same(read_weights(tmp_path, SHAPES, NAMES))


def test_parts_are_joined_and_what_lies_outside_the_prefix_is_found(tmp_path: Path) -> None:
    sources = {"blocks.{i}.qkv": ("layer.{i}.q", "layer.{i}.k"), "prefix": ("cls", "registers"), "last": ("/head",)}
    names = Names(("tower.", ""), sources)
    file = {
        "tower.layer.3.q.weight": torch.zeros(2, 3),
        "tower.layer.3.k.weight": torch.ones(2, 3),
        "tower.cls": torch.zeros(1, 1, 3),
        "tower.registers": torch.ones(1, 4, 3),
        "head.weight": torch.ones(5, 3),
    }
    save_file(file, tmp_path / "model.safetensors")
    wanted = {"blocks.3.qkv.weight": (4, 3), "prefix": (5, 3), "last.weight": (5, 3)}
    found = read_weights(tmp_path, {name: torch.Size(shape) for name, shape in wanted.items()}, names)
    assert {name: tuple(t.shape) for name, t in found.items()} == wanted
    assert found["blocks.3.qkv.weight"].sum(1).tolist() == [0, 0, 3, 3]
    assert found["prefix"].sum(1).tolist() == [0, 3, 3, 3, 3]


def test_a_transposed_matrix_is_of_another_shape(tmp_path: Path) -> None:
    save(tmp_path / "model.safetensors", "visual.", TENSORS | {"a.weight": TENSORS["a.weight"].T})
    with pytest.raises(ConfigurationError, match=r"a\.weight \[3, 4\], not \[4, 3\]"):
        read_weights(tmp_path, SHAPES, NAMES)


def test_a_name_that_nothing_is_said_of_is_its_own_source() -> None:
    assert sources_of("blocks.12.proj.bias", Names(("",), {})) == ["blocks.12.proj.bias"]


def test_a_folder_without_weights_says_what_it_wants(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"no model\.safetensors"):
        read_weights(tmp_path, SHAPES, NAMES)


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"\x00" * 40)
    with pytest.raises(ConfigurationError, match=r"model\.safetensors cannot be read"):
        read_weights(tmp_path, SHAPES, NAMES)


@pytest.mark.parametrize(
    "text",
    ["{", "[]", "{}", '{"weight_map": 3}', '{"weight_map": {"visual.a": "../a.safetensors"}}'],
    ids=["cut", "list", "empty", "number", "outside"],
)
def test_a_strange_index_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(text)
    with pytest.raises(ConfigurationError, match="index"):
        read_weights(tmp_path, SHAPES, NAMES)
