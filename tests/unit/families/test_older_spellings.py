"""Older spellings of config.json and of image processors' files, compared with what transformers makes of them."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import transformers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from foveal.errors import ConfigurationError
from foveal.families.checkpoint import Checkpoint
from foveal.families.fixed_size import FixedSize
from foveal.families.processor import fixed_rule, normalisation, pixel_bounds
from tests.unit.families.folders import CONFIG, PROCESSOR, change, change_vision, copied, read

CONSTANTS = {"image_mean": [0.1, 0.2, 0.3], "image_std": [0.4, 0.5, 0.6], "resample": 3}
STEMS = ["CLIP", "Siglip", "ViT", "Bit"]
FLAGS: list[Any] = [True, False, None, "absent"]
SIZES: list[Any] = [224, 30, [224, 200], {"height": 40, "width": 50}, {"shortest_edge": 60}]


def checkpoint(processor: dict[str, Any]) -> Checkpoint:
    return Checkpoint(Path("folder"), {}, processor, PROCESSOR, "r", True)


def absent(key: str, value: Any) -> dict[str, Any]:
    """A key with its value, or no key: null and absence are two things."""
    return {} if value == "absent" else {key: value}


def theirs(stem: str, processor: dict[str, Any]) -> tuple[Any, ...] | None:
    """Sides or shorter side, and sides of the cut, of transformers' own processor; None where sizes would differ."""
    made = getattr(transformers, f"{stem}ImageProcessorPil")(**processor)
    size = dict(made.size)
    crop = (made.crop_size["height"], made.crop_size["width"]) if made.do_center_crop else None
    if "shortest_edge" in size:
        return (size["shortest_edge"], crop) if crop else None
    sides = size["height"], size["width"]
    return sides, crop or sides


def ours(stem: str, processor: dict[str, Any]) -> tuple[Any, ...] | None:
    try:
        rule = fixed_rule(checkpoint(processor), stem, 4, 0)
    except ConfigurationError as error:
        assert "differ in size" in str(error)
        return None
    sides = rule.height, rule.width
    return (rule.resized or sides, sides) if isinstance(rule, FixedSize) else (rule.shortest_edge, sides)


@pytest.mark.parametrize("stem", STEMS)
def test_sizes_and_cuts_in_every_spelling_are_those_of_transformers(stem: str) -> None:
    crops = [224, [20, 30], {"height": 20, "width": 30}]
    for size, crop, cuts, square in itertools.product(SIZES, crops, FLAGS, FLAGS):
        processor = CONSTANTS | {"size": size, "crop_size": crop}
        processor |= absent("do_center_crop", cuts) | absent("default_to_square", square)
        assert ours(stem, processor) == theirs(stem, processor), processor


def test_a_square_by_name_is_that_of_transformers() -> None:
    processor = CONSTANTS | {"size": {"shortest_edge": 60}, "crop_size": 224, "use_square_size": True}
    assert ours("CLIP", processor) == theirs("CLIP", processor) == ((224, 224), (224, 224))


@pytest.mark.parametrize("stem", STEMS)
def test_scaling_and_normalising_with_nulls_is_that_of_transformers(stem: str) -> None:
    for rescales, normalises, factor in itertools.product(FLAGS, FLAGS, [1 / 255, 0.5, "absent"]):
        processor = CONSTANTS | absent("do_rescale", rescales) | absent("do_normalize", normalises)
        processor |= absent("rescale_factor", factor)
        made = getattr(transformers, f"{stem}ImageProcessorPil")(**processor)
        scale = 255 * (made.rescale_factor if made.do_rescale else 1.0)
        mean, deviation = normalisation(checkpoint(processor))
        plain = [(0.0,) * 3, (1.0,) * 3]
        expected = [made.image_mean, made.image_std] if made.do_normalize else plain
        assert mean == pytest.approx([value / scale for value in expected[0]]), processor
        assert deviation == pytest.approx([value / scale for value in expected[1]]), processor


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("tiny-clip", "do_resize"),
        ("tiny", "do_resize"),
        ("tiny-naflex", "do_resize"),
        ("tiny-clip", "rescale_factor"),
        ("tiny", "rescale_factor"),
        ("tiny", "resample"),
        ("tiny-clip", "size"),
        ("tiny-clip", "image_mean"),
    ],
)
def test_a_null_that_transformers_fails_on_is_refused(tmp_path: Path, name: str, key: str) -> None:
    path = copied(name, tmp_path) / PROCESSOR
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: None}))
    with pytest.raises(ConfigurationError, match=key):
        read(tmp_path)


def test_one_mean_stands_for_all_channels() -> None:
    mean, deviation = normalisation(checkpoint({"image_mean": 0.5, "image_std": 0.25}))
    assert (mean, deviation) == ((0.5,) * 3, (0.25,) * 3)


limits = st.none() | st.integers(1, 10**7)
size_keys = ("shortest_edge", "longest_edge", "min_pixels", "max_pixels")
sizes = st.none() | st.fixed_dictionaries({}, optional={key: st.integers(1, 10**7) for key in size_keys})


@given(sizes, limits, limits)
def test_pixel_limits_in_any_place_are_those_of_transformers(
    size: dict[str, int] | None, least: int | None, most: int | None
) -> None:
    processor = {"size": size, "min_pixels": least, "max_pixels": most}
    try:
        found = pixel_bounds(checkpoint(processor))
    except ConfigurationError as error:
        assert any(words in str(error) for words in ("no pixel limits", "contradicts", "above the other"))
        return
    try:
        made = dict(Qwen2VLImageProcessorPil(**(processor | {"size": dict(size) if size else size})).size)
    except ValueError:  # a mixture of keys, read as it is meant
        made = {}
    if made.keys() == {"shortest_edge", "longest_edge"}:
        assert found == (made["shortest_edge"], made["longest_edge"])
    else:
        inside = size or {}
        assert found[0] in (least, inside.get("shortest_edge"), inside.get("min_pixels"))
        assert found[1] in (most, inside.get("longest_edge"), inside.get("max_pixels"))


@pytest.mark.parametrize(
    ("values", "bounds"),
    [
        ({"size": {"min_pixels": 3136, "max_pixels": 200_704}}, (3136, 200_704)),
        ({"size": {"min_pixels": 3136, "max_pixels": 200_704}, "max_pixels": 100_352}, (3136, 100_352)),
        ({"size": {"shortest_edge": 3136, "longest_edge": 200_704}}, (3136, 200_704)),
        ({"size": {"shortest_edge": 3136, "longest_edge": 200_704}, "min_pixels": 6272}, (6272, 200_704)),
        ({"size": {"shortest_edge": 3136, "max_pixels": 200_704}}, (3136, 200_704)),
        ({"size": {"shortest_edge": None, "min_pixels": 3136, "max_pixels": 200_704}}, (3136, 200_704)),
    ],
    ids=str,
)
def test_a_published_file_is_read_in_each_of_its_spellings(
    tmp_path: Path, values: dict[str, Any], bounds: tuple[int, int]
) -> None:
    path = copied("tiny-qwen2.5-vl", tmp_path) / PROCESSOR
    change(path, size=None, min_pixels=None, max_pixels=None)
    path.write_text(json.dumps(json.loads(path.read_text()) | values))
    assert (read(tmp_path).rule.min_pixels, read(tmp_path).rule.max_pixels) == bounds


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"max_pixels": 9000}, "min_pixels is missing"),
        ({"size": {"min_pixels": 5, "shortest_edge": 6}, "max_pixels": 9}, "contradicts itself"),
        ({"min_pixels": 9, "max_pixels": 5}, "from 9 to 5"),
    ],
)
def test_limits_that_are_none_are_refused(tmp_path: Path, values: dict[str, Any], words: str) -> None:
    path = copied("tiny-qwen2.5-vl", tmp_path) / PROCESSOR
    change(path, size=None, min_pixels=None, max_pixels=None)
    change(path, **values)
    with pytest.raises(ConfigurationError, match=words):
        read(tmp_path)


NAMES = [
    ("tiny-clip", "CLIPFeatureExtractor"),
    ("tiny-clip", "CLIPImageProcessorFast"),
    ("tiny-clip", "CLIPImageProcessorPil"),
    ("tiny-siglip", "SiglipImageProcessorFast"),
    ("tiny-dinov2", "BitImageProcessorFast"),
    ("tiny-naflex", "Siglip2ImageProcessorFast"),
    ("tiny-qwen2-vl", "Qwen2VLImageProcessorFast"),
    ("tiny-qwen2.5-vl", "Qwen2_5_VLImageProcessor"),
    ("tiny", "Qwen3VLImageProcessorFast"),
]


@pytest.mark.parametrize(("name", "processor"), NAMES)
@pytest.mark.parametrize("key", ["image_processor_type", "feature_extractor_type"])
def test_processors_are_known_by_their_older_names(tmp_path: Path, name: str, processor: str, key: str) -> None:
    folder = copied(name, tmp_path)
    expected = read(folder).rule
    change(folder / PROCESSOR, image_processor_type=None, feature_extractor_type=None)
    assert read(folder).rule == expected
    change(folder / PROCESSOR, **{key: processor})
    assert read(folder).rule == expected


FIELDS = {
    "hidden_size": 96,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "patch_size": 16,
}
parts = st.none() | st.fixed_dictionaries({}, optional={key: st.just(value) for key, value in FIELDS.items()})


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(parts, parts)
def test_clips_first_section_is_merged_as_in_transformers(
    tmp_path: Path, newer: dict[str, int] | None, older: dict[str, int] | None
) -> None:
    folder = copied("tiny-clip", tmp_path)
    change(folder / CONFIG, vision_config=newer, vision_config_dict=older)
    tower = read(folder).tower
    made = transformers.CLIPConfig.from_dict(json.loads((folder / CONFIG).read_text())).vision_config
    assert (tower.hidden, tower.depth, tower.heads) == (
        made.hidden_size,
        made.num_hidden_layers,
        made.num_attention_heads,
    )
    assert (tower.intermediate, tower.patch_size) == (made.intermediate_size, made.patch_size)
    assert (tower.activation, tower.epsilon) == (made.hidden_act, made.layer_norm_eps)


def test_a_siglip_has_no_such_section(tmp_path: Path) -> None:
    folder = copied("tiny-siglip", tmp_path)
    change(folder / CONFIG, vision_config_dict={"num_hidden_layers": 7})
    assert read(folder).tower.depth == json.loads((folder / CONFIG).read_text())["vision_config"]["num_hidden_layers"]


WHOLE = {
    "tiny": "Qwen3VLConfig",
    "tiny-qwen2-vl": "Qwen2VLConfig",
    "tiny-qwen2.5-vl": "Qwen2_5_VLConfig",
    "tiny-qwen3.5": "Qwen3_5Config",
}


@pytest.mark.parametrize("name", WHOLE)
def test_a_section_that_is_left_out_has_the_defaults_of_its_class(tmp_path: Path, name: str) -> None:
    folder = copied(name, tmp_path)
    change(folder / CONFIG, vision_config=None)
    vision = getattr(transformers, WHOLE[name])().vision_config
    change(folder / PROCESSOR, patch_size=vision.patch_size)
    tower = read(folder).tower
    assert (tower.depth, tower.heads, tower.patch_size) == (vision.depth, vision.num_heads, vision.patch_size)


ALONE = {"tiny-clip": "clip_vision_model", "tiny-siglip": "siglip_vision_model", "tiny-naflex": "siglip2_vision_model"}


@pytest.mark.parametrize("name", ALONE)
def test_a_tower_saved_alone_may_say_nothing_but_its_type(tmp_path: Path, name: str) -> None:
    folder = copied(name, tmp_path)
    sizes = {"tiny-siglip": {"image_size": 384, "patch_size": 14}}.get(name, {})
    (folder / CONFIG).write_text(json.dumps({"model_type": ALONE[name], **sizes}))
    assert (read(folder).tower.depth, read(folder).tower.hidden) == (12, 768)


@pytest.mark.parametrize("said", ["float16", "torch.float16"])
@pytest.mark.parametrize("key", ["dtype", "torch_dtype"])
def test_a_dtype_is_read_in_its_older_spellings(tmp_path: Path, key: str, said: str) -> None:
    folder = copied("tiny-clip", tmp_path)
    change(folder / CONFIG, dtype=None, torch_dtype=None)
    change(folder / CONFIG, **{key: said})
    assert read(folder).dtype == "float16"


def test_a_vision_config_of_partial_sizes_is_still_a_whole_model(tmp_path: Path) -> None:
    folder = copied("tiny-siglip", tmp_path)
    change_vision(folder, num_hidden_layers=None)
    assert read(folder).tower.depth == 12
