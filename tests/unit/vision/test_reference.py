"""Pixels and patch rows are those of the reference processors, bit for bit."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch

from foveal.families.smart_resize import SmartResize
from foveal.types import PixelPlan
from foveal.vision.decode import decode, probe
from foveal.vision.patchify import write_patches
from foveal.vision.resize import resize

PICTURES = Path(__file__).parents[2] / "data" / "pictures"
# sha256 of the resized uint8 [H, W, 3], from transformers 5.17.0 with torch 2.14.1 and torchvision 0.29.1:
# Qwen2VLImageProcessor (the default one), patch 16, merge 2, 65536 to 16777216 pixels
EXPECTED = {
    "astronaut.jpg": "bd372f2684514c03f650a80d14b2cbf47f8a58238544087f1c61845c96c8c01a",
    "cat.jpg": "d89777088c834af6b851d92153c8b2e134d5017bd6209ce3efa1cf405a4964b6",
    "glass_rgba.png": "50c9f0f4c3d610e443744f6f67f04b1d05a674bc04b3dc087d3b721e77d49d8e",
    "gray.png": "05e047bf10674be98b41a40deaeed91048aceddeb67606d24f84754d74a49081",
    "icon.png": "f9344a52470dc2ea7c08d4fbd8e19f1696f4329f6760b8ea5a8a2fb50b037ea6",
    "noisy.webp": "ebd8f786e1ca34bc1830a901ebda2d76c2ef418696ce14ea46461568c04d0515",
    "strip_tall.png": "5e515e47f1b8fb0945ce393cb6fbe570e284488abe9af11aaa96ff844070ffa4",
}
RULE = SmartResize(patch_size=16, merge_size=2, min_pixels=65536, max_pixels=16777216)


@pytest.mark.parametrize("name", EXPECTED)
def test_resized_pictures_have_the_bits_of_the_reference(name: str) -> None:
    data = (PICTURES / name).read_bytes()
    found = probe(data, 10**7)
    plan = RULE.plan(found.width, found.height)
    resized = resize(decode(data, (255, 255, 255), 10**7), plan)
    assert hashlib.sha256(np.ascontiguousarray(resized).tobytes()).hexdigest() == EXPECTED[name]


@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear"])
@pytest.mark.parametrize("source", [(33, 47), (1, 1), (1, 700), (500, 19), (256, 320)], ids=str)
@pytest.mark.parametrize("target", [(64, 96), (256, 256), (32, 640)], ids=str)
def test_mixed_and_separate_colours_resize_to_the_same_bits(source, target, interpolation) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (*source, 3), dtype=np.uint8)
    planes = torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1))).unsqueeze(0)
    expected = torch.nn.functional.interpolate(planes, target, mode=interpolation, antialias=True, align_corners=False)
    resized = resize(pixels, PixelPlan(*target, 16, 2, interpolation))
    assert resized.shape == (*target, 3) and resized.dtype == np.uint8
    assert np.array_equal(resized, expected[0].permute(1, 2, 0).numpy())


def test_a_picture_of_the_right_size_is_passed_on_untouched() -> None:
    pixels = np.zeros((64, 32, 3), np.uint8)
    assert resize(pixels, PixelPlan(64, 32, 16, 2)) is pixels


def test_a_read_only_picture_is_resized_without_a_warning() -> None:
    pixels = np.zeros((64, 32, 3), np.uint8)
    pixels.flags.writeable = False
    assert not resize(pixels, PixelPlan(32, 32, 16, 2)).any()


def patches_one_by_one(pixels: np.ndarray, plan: PixelPlan) -> np.ndarray:
    """The rule in its plainest form: block after block, patch after patch."""
    size, merge = plan.patch_size, plan.merge_size
    rows = []
    for block_y in range(0, plan.height, size * merge):
        for block_x in range(0, plan.width, size * merge):
            for y in range(block_y, block_y + size * merge, size):
                for x in range(block_x, block_x + size * merge, size):
                    rows.append(pixels[y : y + size, x : x + size].transpose(2, 0, 1).ravel())
    return np.stack(rows)


PLANS = [PixelPlan(64, 96, 16, 2), PixelPlan(84, 56, 14, 2), PixelPlan(32, 32, 16, 1), PixelPlan(48, 96, 8, 3)]


@pytest.mark.parametrize("layout", ["mixed", "planes", "neither"])
@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_rows_go_by_merge_blocks_and_hold_channel_y_x(plan: PixelPlan, layout: str) -> None:
    pixels = np.random.default_rng(1).integers(0, 256, (plan.height, plan.width, 3), dtype=np.uint8)
    given = {
        "mixed": pixels,
        "planes": np.ascontiguousarray(pixels.transpose(2, 0, 1)).transpose(1, 2, 0),
        "neither": np.asfortranarray(pixels),
    }[layout]
    arena = np.full(plan.num_patches * plan.row_bytes + 7, 255, np.uint8)
    write_patches(given, plan, arena[3:-4])
    assert np.array_equal(arena[3:-4].reshape(plan.num_patches, -1), patches_one_by_one(pixels, plan))
    assert (arena[:3] == 255).all() and (arena[-4:] == 255).all()


def test_rows_are_those_of_transformers() -> None:
    module = pytest.importorskip("transformers.models.qwen2_vl.image_processing_pil_qwen2_vl")
    plan = PixelPlan(96, 64, 16, 2)
    pixels = np.random.default_rng(2).integers(0, 256, (plan.height, plan.width, 3), dtype=np.uint8)
    processor = module.Qwen2VLImageProcessorPil(
        do_resize=False, do_rescale=False, do_normalize=False, patch_size=16, merge_size=2, temporal_patch_size=2
    )
    theirs = processor(pixels, return_tensors="np")
    frames = theirs["pixel_values"].reshape(plan.num_patches, 3, 2, 16 * 16)
    rows = np.empty(plan.num_patches * plan.row_bytes, np.uint8)
    write_patches(pixels, plan, rows)
    assert theirs["image_grid_thw"].tolist() == [list(plan.grid)]
    for frame in (0, 1):
        assert np.array_equal(rows.reshape(plan.num_patches, 3, -1), frames[:, :, frame])


def test_rows_of_another_length_are_a_bug_and_not_a_bad_picture() -> None:
    plan = PixelPlan(32, 32, 16, 2)
    with pytest.raises(ValueError, match="this is a bug"):
        write_patches(np.zeros((32, 32, 3), np.uint8), plan, np.zeros(100, np.uint8))
