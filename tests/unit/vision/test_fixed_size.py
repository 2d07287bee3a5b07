"""Towers of one size: the cut out of the middle, the edge that is no whole patch, and rows line by line."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from foveal.families.catalogue import local_spec
from foveal.types import PixelPlan
from foveal.vision.patchify import write_patches
from foveal.vision.resize import resize

sides = st.integers(1, 40)


def noise(height: int, width: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(height * 1000 + width).integers(1, 256, (height, width, 3), dtype=np.uint8)


def cropped_as_written(pixels: np.ndarray[Any, Any], height: int, width: int) -> np.ndarray[Any, Any]:
    """center_crop of transformers' torchvision backend, step for step."""
    image = torch.from_numpy(pixels.copy()).permute(2, 0, 1)
    have_height, have_width = image.shape[-2:]
    if width > have_width or height > have_height:
        left, right = ((width - have_width + odd) // 2 if width > have_width else 0 for odd in (0, 1))
        top, bottom = ((height - have_height + odd) // 2 if height > have_height else 0 for odd in (0, 1))
        image = torch.nn.functional.pad(image, (left, right, top, bottom))
        have_height, have_width = image.shape[-2:]
    top, left = int((have_height - height) / 2.0), int((have_width - width) / 2.0)
    return image[:, top : top + height, left : left + width].permute(1, 2, 0).numpy()


@given(sides, sides, sides, sides)
def test_the_middle_is_cut_out_or_laid_on_black_as_in_the_reference(
    have_height: int, have_width: int, height: int, width: int
) -> None:
    pixels = noise(have_height, have_width)
    found = resize(pixels, PixelPlan(height, width, 1, 1, resized=(have_height, have_width)))
    assert found.shape == (height, width, 3) and found.dtype == np.uint8
    assert np.array_equal(found, cropped_as_written(pixels, height, width))


@pytest.mark.parametrize(
    ("have", "first"),
    [(8, 2), (9, 2), (4, 0), (5, 0), (3, None), (2, None)],
    ids=["even", "odd", "equal", "one more", "one less", "two less"],
)
def test_what_cannot_be_halved_is_lost_on_the_right_and_left_black_there(have: int, first: int | None) -> None:
    columns = np.arange(1, have + 1, dtype=np.uint8)
    pixels = np.repeat(np.broadcast_to(columns, (4, have))[..., None], 3, axis=2)
    found = resize(pixels, PixelPlan(4, 4, 1, 1, resized=(4, have)))[0, :, 0].tolist()
    short = {3: [1, 2, 3, 0], 2: [0, 1, 2, 0]}
    assert found == (short[have] if first is None else list(range(first + 1, first + 5)))


def test_the_crop_follows_the_resize() -> None:
    pixels = noise(300, 500)
    plan = local_spec("builtin:tiny-dinov2", dummy_weights=True).rule.plan(500, 300)
    planes = torch.from_numpy(pixels).permute(2, 0, 1)[None]
    whole = torch.nn.functional.interpolate(planes, (256, 426), mode="bicubic", antialias=True, align_corners=False)
    assert plan.resized == (256, 426)
    assert np.array_equal(resize(pixels, plan), cropped_as_written(whole[0].permute(1, 2, 0).numpy(), 224, 224))


@pytest.mark.parametrize("layout", ["mixed", "planes"])
def test_an_edge_that_is_no_whole_patch_is_cut_off_as_by_the_convolution(layout: str) -> None:
    plan = PixelPlan(384, 384, 14, 1, "bilinear")
    pixels = noise(384, 384)
    given = pixels if layout == "mixed" else np.ascontiguousarray(pixels.transpose(2, 0, 1)).transpose(1, 2, 0)
    rows = np.empty(plan.num_patches * plan.row_bytes, np.uint8)
    write_patches(given, plan, rows)
    kernel = torch.randn(5, 3, 14, 14, generator=torch.Generator().manual_seed(0))
    theirs = torch.nn.functional.conv2d(torch.from_numpy(pixels).permute(2, 0, 1)[None].float(), kernel, stride=14)
    ours = torch.from_numpy(rows).view(27 * 27, -1).float() @ kernel.flatten(1).T
    assert torch.allclose(ours, theirs.flatten(2)[0].T, atol=1e-1, rtol=1e-4)


def test_patches_of_one_colour_each_come_line_by_line_where_nothing_is_merged() -> None:
    plan = PixelPlan(48, 80, 16, 1)
    numbers = np.arange(15, dtype=np.uint8).reshape(3, 5)
    pixels = np.repeat(np.repeat(numbers, 16, axis=0), 16, axis=1)[..., None].repeat(3, axis=2)
    rows = np.empty(plan.num_patches * plan.row_bytes, np.uint8)
    write_patches(pixels, plan, rows)
    assert (rows.reshape(15, -1) == np.arange(15)[:, None]).all()


def test_a_naflex_row_holds_the_values_of_transformers_in_another_order() -> None:
    from transformers.models.siglip2.image_processing_pil_siglip2 import convert_image_to_patches

    plan = PixelPlan(64, 96, 16, 1)
    pixels = noise(64, 96)
    rows = np.empty(plan.num_patches * plan.row_bytes, np.uint8)
    write_patches(pixels, plan, rows)
    theirs = convert_image_to_patches(pixels.transpose(2, 0, 1), 16)
    assert np.array_equal(rows.reshape(-1, 3, 16, 16).transpose(0, 2, 3, 1).reshape(24, -1), theirs)


@pytest.mark.parametrize("name", ["tiny-clip", "tiny-siglip", "tiny-naflex", "tiny-dinov2"])
@pytest.mark.parametrize("size", [(1, 1), (500, 19), (1500, 40), (37, 412), (640, 480)], ids=str)
def test_every_shape_becomes_the_rows_that_its_plan_says(name: str, size: tuple[int, int]) -> None:
    plan = local_spec(f"builtin:{name}", dummy_weights=True).rule.plan(*size)
    rows = np.zeros(plan.num_patches * plan.row_bytes, np.uint8)
    write_patches(resize(np.full((size[1], size[0], 3), 200, np.uint8), plan), plan, rows)
    assert (rows == 200).all()  # interpolation keeps a flat picture, and none of these is smaller than its cut
