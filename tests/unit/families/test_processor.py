"""Image processors' files: constants from the file alone, older forms as transformers reads them, and refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from foveal.errors import ConfigurationError
from foveal.families.fixed_size import FixedSize, ShortestEdgeCrop
from tests.unit.families.folders import PROCESSOR, change, copied, read

OPENAI_MEAN, OPENAI_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
KINDS = ["tiny", "tiny-qwen2-vl", "tiny-qwen2.5-vl", "tiny-clip", "tiny-siglip", "tiny-naflex", "tiny-dinov2"]


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("key", ["image_mean", "image_std"])
def test_no_family_has_constants_of_its_own(tmp_path: Path, name: str, key: str) -> None:
    folder = copied(name, tmp_path)
    change(folder / PROCESSOR, **{key: [0.11, 0.22, 0.33]})
    assert getattr(read(folder), key) == (0.11, 0.22, 0.33)
    change(folder / PROCESSOR, **{key: None})
    with pytest.raises(ConfigurationError, match=f"{PROCESSOR} has no '{key}'"):
        read(folder)


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("tiny-clip", "size"),
        ("tiny-clip", "crop_size"),
        ("tiny-clip", "resample"),
        ("tiny-siglip", "size"),
        ("tiny-siglip", "resample"),
        ("tiny-dinov2", "crop_size"),
        ("tiny-naflex", "max_num_patches"),
        ("tiny-naflex", "resample"),
    ],
)
def test_a_size_or_filter_that_is_missing_is_named(tmp_path: Path, name: str, key: str) -> None:
    folder = copied(name, tmp_path)
    change(folder / PROCESSOR, **{key: None})
    with pytest.raises(ConfigurationError, match=key):
        read(folder)


def test_clips_first_files_are_read_as_transformers_reads_them(tmp_path: Path) -> None:
    folder = copied("tiny-clip", tmp_path)
    legacy = {"crop_size": 224, "do_center_crop": True, "do_normalize": True, "do_resize": True, "resample": 3}
    legacy |= {"feature_extractor_type": "CLIPFeatureExtractor", "size": 224}
    constants = {"image_mean": list(OPENAI_MEAN), "image_std": list(OPENAI_STD)}
    (folder / PROCESSOR).write_text(json.dumps(legacy | constants))
    spec = read(folder)
    assert spec.rule == ShortestEdgeCrop(224, 224, 32, "bicubic", 1, shortest_edge=224)
    assert (spec.image_mean, spec.image_std) == (OPENAI_MEAN, OPENAI_STD)


VIT = {"image_processor_type": "ViTImageProcessor"}
RULES: list[tuple[dict[str, Any], FixedSize | ShortestEdgeCrop]] = [
    ({"size": {"height": 224, "width": 224}}, FixedSize(224, 224, 32, "bicubic", 1)),
    ({"size": [224, 224], "do_center_crop": False}, FixedSize(224, 224, 32, "bicubic", 1)),
    ({"size": {"height": 250, "width": 260}}, FixedSize(224, 224, 32, "bicubic", 1, resized=(250, 260))),
    ({"size": {"shortest_edge": 240, "longest_edge": None}}, ShortestEdgeCrop(224, 224, 32, "bicubic", 1, 240)),
    ({"resample": 2}, ShortestEdgeCrop(224, 224, 32, "bilinear", 1, 224)),
    # the processor class tells what a lone number means, and whether the middle is cut out
    (VIT | {"size": 224, "do_center_crop": None}, FixedSize(224, 224, 32, "bicubic", 1)),
    ({"do_center_crop": None, "size": 224}, ShortestEdgeCrop(224, 224, 32, "bicubic", 1, 224)),
]


@pytest.mark.parametrize(("values", "rule"), RULES, ids=lambda v: str(v)[:50])
def test_sizes_in_every_form_become_a_rule(tmp_path: Path, values: dict[str, Any], rule: object) -> None:
    folder = copied("tiny-clip", tmp_path)
    change(folder / PROCESSOR, **values)
    assert read(folder).rule == rule


@pytest.mark.parametrize(
    ("name", "values", "words"),
    [
        ("tiny-clip", {"do_center_crop": False}, "differ in size"),
        ("tiny-siglip", {"size": 384}, "differ in size"),
        ("tiny-clip", {"size": {"shortest_edge": 224, "longest_edge": 400}}, "height and width, or shortest_edge"),
        ("tiny-clip", {"size": {"shortest_edge": 0}}, "not a whole number from 1 to"),
        ("tiny-clip", {"resample": 1}, "resample 1"),
        ("tiny-clip", {"do_resize": False}, "do_resize false"),
        ("tiny", {"do_resize": False}, "do_resize false"),
        ("tiny-naflex", {"do_resize": False}, "do_resize false"),
        ("tiny-clip", {"do_normalize": "yes"}, "neither true nor false"),
        ("tiny-clip", {"rescale_factor": 0}, "not a number above 0"),
        ("tiny-clip", {"image_processor_type": "BlipImageProcessor"}, "names BlipImageProcessor"),
        ("tiny", {"image_processor_type": "CLIPImageProcessor"}, "names CLIPImageProcessor"),
        ("tiny-naflex", {"image_processor_type": "SiglipImageProcessor"}, "names SiglipImageProcessor"),
        ("tiny-siglip", {"size": {"height": 448, "width": 448}}, "not of one model"),
        ("tiny-naflex", {"patch_size": None}, "patch size None"),
    ],
    ids=lambda v: str(v)[:40],
)
def test_a_processor_that_is_not_followed_is_refused(tmp_path: Path, name: str, values: Any, words: str) -> None:
    path = copied(name, tmp_path) / PROCESSOR
    content = json.loads(path.read_text()) | values
    path.write_text(json.dumps(content))
    with pytest.raises(ConfigurationError, match=words):
        read(tmp_path)


def test_other_scales_and_no_normalising_are_folded_into_the_constants(tmp_path: Path) -> None:
    path = copied("tiny-clip", tmp_path) / PROCESSOR
    change(path, rescale_factor=1 / 127.5, image_mean=[1.0, 1.0, 1.0], image_std=[1.0, 1.0, 1.0])
    spec = read(tmp_path)  # x / 127.5 - 1 = (x / 255 - 0.5) / 0.5
    assert spec.image_mean == pytest.approx((0.5,) * 3) and spec.image_std == pytest.approx((0.5,) * 3)
    change(path, do_normalize=False, rescale_factor=1 / 255)
    assert (read(tmp_path).image_mean, read(tmp_path).image_std) == ((0.0,) * 3, (1.0,) * 3)
    change(path, do_rescale=False)
    assert read(tmp_path).image_std == pytest.approx((1 / 255,) * 3)


def test_limits_of_either_generation_count_and_the_older_ones_win(tmp_path: Path) -> None:
    path = copied("tiny-qwen2-vl", tmp_path) / PROCESSOR
    change(path, size={"shortest_edge": 5000, "longest_edge": 60_000})
    assert (read(tmp_path).rule.min_pixels, read(tmp_path).rule.max_pixels) == (3136, 12_845_056)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"min_pixels": None, "max_pixels": None}))
    assert (read(tmp_path).rule.min_pixels, read(tmp_path).rule.max_pixels) == (5000, 60_000)


def test_a_picture_obeys_the_files_limit_and_the_requests(tmp_path: Path) -> None:
    change(copied("tiny-qwen2-vl", tmp_path) / PROCESSOR, max_pixels=200_000)
    plans = [read(tmp_path).rule.plan(2000, 2000), read(tmp_path).rule.plan(2000, 2000, max_pixels=100_000)]
    assert [plan.height * plan.width for plan in plans] == [420**2, 308**2]


def test_settings_nested_in_the_processors_own_file_win_and_suffice(tmp_path: Path) -> None:
    folder = copied("tiny-clip", tmp_path)
    settings = json.loads((folder / PROCESSOR).read_text())
    nested = {"image_processor": settings | {"image_mean": [0.1, 0.2, 0.3]}, "processor_class": "CLIPProcessor"}
    (folder / "processor_config.json").write_text(json.dumps(nested))
    assert read(folder).image_mean == (0.1, 0.2, 0.3)
    (folder / PROCESSOR).unlink()
    assert read(folder).image_mean == (0.1, 0.2, 0.3)
    change(folder / "processor_config.json", image_processor={"size": 224})
    with pytest.raises(ConfigurationError, match=r"processor_config\.json has no"):
        read(folder)


def test_a_processors_own_file_without_such_settings_is_passed_over(tmp_path: Path) -> None:
    folder = copied("tiny-clip", tmp_path)
    (folder / "processor_config.json").write_text(json.dumps({"processor_class": "CLIPProcessor"}))
    assert read(folder).image_mean == OPENAI_MEAN
    (folder / PROCESSOR).unlink()
    with pytest.raises(ConfigurationError, match=r"preprocessor_config\.json is missing"):
        read(folder)
