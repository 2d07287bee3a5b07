"""Each family reads its own files: geometry, names, rows; whole models and towers alone; defaults, and refusals."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from foveal.errors import ConfigurationError
from foveal.families.catalogue import FAMILIES, builtins, local_spec
from foveal.families.listing import LISTING
from foveal.families.naflex import NaFlex
from foveal.types import Output
from tests.unit.families.folders import CONFIG, change, change_vision, copied, read

TOKENS = Output("tokens", "float32")
EXPECTED: dict[str, tuple[Any, ...]] = {
    # family, default output, tokens of 640 x 480, width, pooled width, prefix rows, grid if fixed
    "tiny": ("qwen3_vl", "tokens", 300, 192, 64, 0, None),
    "tiny-qwen2-vl": ("qwen2_vl", "tokens", 391, 64, 64, 0, None),
    "tiny-qwen2.5-vl": ("qwen2_5_vl", "tokens", 391, 64, 64, 0, None),
    "tiny-qwen3.5": ("qwen3_5", "tokens", 300, 64, 64, 0, None),
    "tiny-qwen3-omni": ("qwen3_omni", "tokens", 300, 192, 64, 0, None),
    "tiny-clip": ("clip", "pooled", 50, 64, 48, 1, (7, 7)),
    "tiny-siglip": ("siglip", "pooled", 729, 64, 64, 0, (27, 27)),
    "tiny-naflex": ("siglip2_naflex", "pooled", 252, 64, 64, 0, None),
    "tiny-dinov2": ("dinov2", "pooled", 257, 64, 64, 1, (16, 16)),
    "tiny-dinov2-registers": ("dinov2", "pooled", 261, 64, 64, 5, (16, 16)),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_a_built_in_of_each_kind_is_read_whole(name: str) -> None:
    spec = local_spec(f"builtin:{name}", dummy_weights=False)
    plan = spec.rule.plan(640, 480)
    found = (spec.family, spec.default_output, plan.num_tokens, spec.width, spec.pooled_width)
    assert (*found, spec.tower.prefix_rows, spec.tower.fixed_grid) == EXPECTED[name]
    assert plan.prefix_rows == spec.tower.prefix_rows and plan.patch_size == spec.tower.patch_size
    assert spec.fixed_tokens in (None, plan.num_tokens)
    assert spec.fixed_tokens is None or plan.grid[1:] == spec.tower.fixed_grid
    assert set(spec.row_meaning) == set(spec.outputs) == {"tokens", "pooled"}


def test_the_listing_names_every_built_in_and_every_model_type_once() -> None:
    assert sorted(EXPECTED) == builtins()
    listed = [name for info in LISTING for name in info.builtins]
    assert sorted(listed) == [f"builtin:{name}" for name in builtins()]
    assert sorted(t for info in LISTING for t in info.model_types) == sorted(FAMILIES)
    for info in LISTING:
        assert all(getattr(info, field.name) for field in fields(info))
        assert {local_spec(name, dummy_weights=True).family for name in info.builtins} == {info.name}


def test_windows_are_counted_in_tokens() -> None:
    positions = local_spec("builtin:tiny-qwen2.5-vl", dummy_weights=True).tower.positions
    assert (positions.window, positions.full_blocks) == (4, (1, 3))


def test_registers_filter_their_positions_and_plain_towers_do_not() -> None:
    towers = [local_spec(f"builtin:tiny-dinov2{kind}", dummy_weights=True).tower for kind in ("", "-registers")]
    assert [tower.positions.antialias for tower in towers] == [False, True]
    assert [tower.positions.count for tower in towers] == [1 + 37**2] * 2
    assert towers[1].names.sources["prefix"] == ("embeddings.cls_token", "embeddings.register_tokens")


ALONE = {
    "tiny": "qwen3_vl_vision",
    "tiny-qwen2-vl": "qwen2_vl_vision",
    "tiny-qwen2.5-vl": "qwen2_5_vl_vision",
    "tiny-qwen3.5": "qwen3_5_vision",
    "tiny-clip": "clip_vision_model",
    "tiny-siglip": "siglip_vision_model",
    "tiny-naflex": "siglip2_vision_model",
}


@pytest.mark.parametrize("name", ALONE)
def test_a_tower_saved_alone_is_the_same_tower(tmp_path: Path, name: str) -> None:
    folder = copied(name, tmp_path)
    whole = read(folder)
    vision = json.loads((folder / CONFIG).read_text())["vision_config"]
    architecture = "CLIPVisionModelWithProjection" if name == "tiny-clip" else "Any"
    vision |= {"model_type": ALONE[name], "architectures": [architecture]}
    (folder / CONFIG).write_text(json.dumps(vision))
    alone = read(folder)
    assert (alone.family, alone.width, alone.pooled_width) == (whole.family, whole.width, whole.pooled_width)
    assert "" in alone.tower.names.prefixes
    shared = {field.name for field in fields(alone.tower)} - {"names"}
    assert all(getattr(alone.tower, part) == getattr(whole.tower, part) for part in shared)


def test_omnis_thinker_alone_is_read_too(tmp_path: Path) -> None:
    folder = copied("tiny-qwen3-omni", tmp_path)
    thinker = json.loads((folder / CONFIG).read_text())["thinker_config"]
    (folder / CONFIG).write_text(json.dumps(thinker | {"dtype": "bfloat16"}))
    assert (read(folder).family, read(folder).dtype) == ("qwen3_omni", "bfloat16")


@pytest.mark.parametrize(
    ("architecture", "pooled_width"),
    [("CLIPModel", 48), ("CLIPVisionModelWithProjection", 40), ("CLIPVisionModel", 64)],
)
def test_clip_is_projected_where_its_class_is(tmp_path: Path, architecture: str, pooled_width: int) -> None:
    folder = copied("tiny-clip", tmp_path)
    change_vision(folder, projection_dim=40)
    change(folder / CONFIG, architectures=[architecture])
    spec = read(folder)
    assert spec.pooled_width == pooled_width and bool(spec.tower.pool.projection) == (architecture != "CLIPVisionModel")


@pytest.mark.parametrize("name", ["tiny-siglip", "tiny-naflex"])
def test_siglip_without_a_head_offers_the_mean(tmp_path: Path, name: str) -> None:
    folder = copied(name, tmp_path)
    assert read(folder).tower.pool.kind == "attention"
    change_vision(folder, vision_use_head=False)
    assert read(folder).tower.pool.kind == "mean" and "mean" in read(folder).row_meaning["pooled"]


def test_what_older_files_left_out_is_the_config_classs_default(tmp_path: Path) -> None:
    folder = copied("tiny-siglip", tmp_path)
    change(folder / CONFIG, vision_config={"image_size": 384, "patch_size": 14})
    tower = read(folder).tower
    assert (tower.hidden, tower.depth, tower.heads, tower.intermediate) == (768, 12, 12, 3072)
    assert (tower.activation, tower.epsilon) == ("gelu_tanh", 1e-6)


def test_every_default_is_that_of_transformers() -> None:
    import transformers

    from foveal.families import clip, dinov2, qwen2_vl, qwen3_vl, siglip

    theirs = {
        "CLIPVisionConfig": clip._DEFAULTS,
        "SiglipVisionConfig": siglip.DEFAULTS | {"image_size": 224},
        "Siglip2VisionConfig": siglip.DEFAULTS | {"num_patches": 256},
        "Dinov2Config": dinov2._PLAIN_DEFAULTS,
        "Dinov2WithRegistersConfig": dinov2._REGISTERS_DEFAULTS,
    }
    configs = {name: (getattr(transformers, name)(), ours) for name, ours in theirs.items()}
    nested = {
        "Qwen2VLConfig": qwen2_vl._QWEN2_DEFAULTS,
        "Qwen2_5_VLConfig": qwen2_vl._QWEN2_5_DEFAULTS,
        "Qwen3VLConfig": qwen3_vl._QWEN3_DEFAULTS,
        "Qwen3_5Config": qwen3_vl._QWEN3_5_DEFAULTS,
    }
    configs |= {name: (getattr(transformers, name)().vision_config, ours) for name, ours in nested.items()}
    for name, (config, ours) in configs.items():
        for key, value in ours.items():
            found = getattr(config, key)
            assert (list(found) if isinstance(found, tuple) else found) == value, (name, key)


@pytest.mark.parametrize(
    ("name", "values", "words"),
    [
        ("tiny", {"num_heads": 5}, "no multiple of 5 heads"),
        ("tiny", {"num_heads": 32}, "which rotation needs"),
        ("tiny", {"num_position_embeddings": 500}, "no square"),
        ("tiny", {"deepstack_visual_indexes": [2, 1]}, "deepstack must rise"),
        ("tiny", {"hidden_act": "mish"}, "'mish' is not known"),
        ("tiny", {"depth": "many"}, "depth is 'many'"),
        ("tiny", {"in_channels": 4}, "three channels"),
        ("tiny", {"rope_parameters": {"rope_type": "yarn"}}, "rope_type"),
        ("tiny-qwen2.5-vl", {"window_size": 20}, "smaller than a token"),
        ("tiny-qwen2.5-vl", {"fullatt_block_indexes": 3}, "no list of whole numbers"),
        ("tiny-clip", {"image_size": 336}, "not of one model"),
        ("tiny-clip", {"layer_norm_eps": "small"}, "not a number above 0"),
        ("tiny-naflex", {"patch_size": 14}, "not of one model"),
        ("tiny-naflex", {"num_patches": 250}, "no square"),
        ("tiny-siglip", {"vision_use_head": "yes"}, "neither true nor false"),
    ],
    ids=lambda v: str(v)[:40],
)
def test_a_config_that_would_be_computed_wrongly_is_refused(tmp_path: Path, name: str, values: Any, words: str) -> None:
    folder = copied(name, tmp_path)
    change_vision(folder, **values)
    with pytest.raises(ConfigurationError, match=words):
        read(folder)


def test_dinov2_without_a_biased_qkv_and_with_a_gated_mlp(tmp_path: Path) -> None:
    folder = copied("tiny-dinov2", tmp_path)
    change(folder / CONFIG, qkv_bias=False, use_swiglu_ffn=True, mlp_ratio=3)
    tower = read(folder).tower
    assert (tower.qkv_bias, tower.gated, tower.activation, tower.intermediate) == (False, True, "silu", 128)
    assert tower.names.sources["blocks.{i}.fc1"] == ("encoder.layer.{i}.mlp.weights_in",)


def test_naflex_has_no_fixed_tokens() -> None:
    spec = local_spec("builtin:tiny-naflex", dummy_weights=True)
    assert isinstance(spec.rule, NaFlex) and spec.fixed_tokens is None and spec.shape(TOKENS, 9) == (9, 64)
