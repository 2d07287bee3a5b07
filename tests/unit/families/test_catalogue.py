"""From --model to a spec: built-ins, folders, hub ids, and what is wrong with them."""

from __future__ import annotations

from pathlib import Path

import pytest

from foveal.errors import ConfigurationError
from foveal.families.catalogue import builtins, is_hub_id, local_spec
from foveal.types import Output
from tests.unit.families.folders import CONFIG, PROCESSOR, change, change_vision, copied, read


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return copied("tiny", tmp_path)


def test_the_built_in_is_a_tiny_qwen3_vl_with_deepstack() -> None:
    spec = local_spec("builtin:tiny", dummy_weights=False)
    assert "tiny" in builtins() and spec.dummy_weights and spec.family == "qwen3_vl"
    assert [level.name for level in spec.levels] == ["main", "deepstack.0", "deepstack.1"]
    assert spec.shape(Output("tokens", "float32"), 5) == (5, 192)
    assert spec.embedding_bytes(Output("pooled", "bfloat16"), 5) == 128


def test_a_folder_is_named_by_its_folder_and_known_by_its_content(folder: Path) -> None:
    first = local_spec(str(folder), dummy_weights=True)
    assert first.name == folder.name
    change(folder / "preprocessor_config.json", image_mean=[0.1, 0.2, 0.3])
    second = local_spec(str(folder), dummy_weights=True, served_name="mine")
    assert second.name == "mine" and second.image_mean == (0.1, 0.2, 0.3)
    assert first.revision != second.revision


@pytest.mark.parametrize("model_type", ["qwen3_vl", "qwen3_vl_moe"])
def test_dense_and_moe_share_the_tower(folder: Path, model_type: str) -> None:
    change(folder / "config.json", model_type=model_type)
    assert local_spec(str(folder), dummy_weights=True).family == "qwen3_vl"


def test_older_processor_files_name_their_limits_otherwise(folder: Path) -> None:
    change(folder / "preprocessor_config.json", size=None, min_pixels=3136, max_pixels=100_352)
    rule = local_spec(str(folder), dummy_weights=True).rule
    assert (rule.min_pixels, rule.max_pixels) == (3136, 100_352)


@pytest.mark.parametrize(
    ("file", "values", "words"),
    [
        ("config.json", {"model_type": "llama"}, "known families"),
        ("config.json", {"vision_config": 3}, "vision_config is 3, no JSON object"),
        ("config.json", {"dtype": "int4"}, "int4"),
        ("preprocessor_config.json", {"image_mean": None}, "image_mean"),
        ("preprocessor_config.json", {"size": None}, "pixel limits"),
        ("preprocessor_config.json", {"patch_size": 14}, "not of one model"),
    ],
    ids=lambda v: str(v),
)
def test_a_file_that_lacks_something_is_refused(folder: Path, file: str, values: dict, words: str) -> None:
    change(folder / file, **values)
    with pytest.raises(ConfigurationError, match=words):
        local_spec(str(folder), dummy_weights=True)


def test_missing_folders_files_and_built_ins_are_refused(tmp_path: Path) -> None:
    for model in ("./no/such/checkpoint", "builtin:nothing", str(tmp_path)):
        with pytest.raises(ConfigurationError):
            local_spec(model, dummy_weights=True)


@pytest.mark.parametrize(
    ("model", "is_hub"),
    [
        ("Qwen/Qwen3-VL-2B-Instruct", True),
        ("gpt2", True),
        ("./here", False),
        ("/abs/path", False),
        ("a/b/c", False),
        ("builtin:tiny", False),
        ("~/models/x", False),
    ],
)
def test_only_what_looks_like_a_hub_id_is_looked_up(model: str, is_hub: bool) -> None:
    assert is_hub_id(model) is is_hub


WRONG_KINDS: list[tuple[str, str, object]] = [
    ("tiny-clip", CONFIG, {"model_type": ["clip"]}),
    ("tiny-clip", CONFIG, {"architectures": 5}),
    ("tiny-clip", CONFIG, {"vision_config": 3}),
    ("tiny", CONFIG, {"thinker_config": "x"}),
    ("tiny-clip", PROCESSOR, {"resample": [3]}),
    ("tiny-clip", PROCESSOR, {"image_mean": ["a", "b", "c"]}),
    ("tiny-clip", PROCESSOR, {"image_std": [0, 0, 0]}),
    ("tiny-clip", PROCESSOR, {"rescale_factor": 1e400}),
    ("tiny-clip", PROCESSOR, {"size": {"shortest_edge": 10**12}}),
    ("tiny-dinov2", PROCESSOR, {"crop_size": {"height": 5, "width": 5}}),
    ("tiny-dinov2", CONFIG, {"mlp_ratio": 1e400}),
    ("tiny-dinov2", CONFIG, {"num_hidden_layers": 10**30}),
]


@pytest.mark.parametrize(("name", "file", "values"), WRONG_KINDS, ids=lambda value: str(value)[:40])
def test_values_of_a_wrong_kind_are_refused_in_a_sentence(
    tmp_path: Path, name: str, file: str, values: dict[str, object]
) -> None:
    folder = copied(name, tmp_path)
    change(folder / file, **values)
    if values == {"architectures": 5}:  # which only names the class that wrote the file
        assert read(folder).architecture == "unknown"
        return
    with pytest.raises(ConfigurationError):
        read(folder)


@pytest.mark.parametrize("rope", ["x", {"rope_theta": "x"}, {"rope_theta": -1}, {"rope_theta": float("nan")}])
def test_a_rotation_that_is_none_is_refused(tmp_path: Path, rope: object) -> None:
    folder = copied("tiny", tmp_path)
    change_vision(folder, rope_parameters=rope)
    with pytest.raises(ConfigurationError):
        read(folder)
