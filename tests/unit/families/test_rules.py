"""The resize rules beside the smart one: properties, and the numbers of transformers' own functions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers.image_transforms import get_resize_output_image_size
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize
from transformers.models.siglip2.image_processing_pil_siglip2 import get_image_size_for_max_num_patches

from foveal.errors import AspectRatio
from foveal.families.fixed_size import FixedSize, ShortestEdgeCrop
from foveal.families.naflex import NaFlex
from foveal.families.smart_resize import SmartResize

SQUARE = FixedSize(384, 384, 14, "bicubic", 0)
CROP = ShortestEdgeCrop(224, 224, 14, "bicubic", 1, shortest_edge=256)
NAFLEX = NaFlex(16, 256, "bilinear")
sides = st.integers(1, 20_000)


@given(sides, sides)
def test_a_fixed_size_is_that_of_every_picture_and_loses_what_is_no_whole_patch(width: int, height: int) -> None:
    plan = SQUARE.plan(width, height)
    assert (plan.height, plan.width, plan.resized) == (384, 384, None)
    assert plan.grid == (1, 27, 27) and plan.num_tokens == plan.num_patches == 729


@given(sides, sides)
def test_the_shorter_side_is_as_told_and_the_longer_one_that_of_transformers(width: int, height: int) -> None:
    if max(width, height) > 200 * min(width, height):
        with pytest.raises(AspectRatio):
            CROP.plan(width, height)
        return
    plan = CROP.plan(width, height)
    picture = np.empty((1, height, width), np.bool_)
    theirs = get_resize_output_image_size(picture, 256, default_to_square=False, input_data_format="channels_first")
    assert plan.resized == theirs and min(theirs) == 256
    assert (plan.height, plan.width, plan.num_tokens) == (224, 224, 257)


@pytest.mark.parametrize(
    ("size", "resized"),
    [((500, 375), (256, 341)), ((375, 500), (341, 256)), ((1500, 40), (256, 9600)), ((1, 1), (256, 256))],
)
def test_the_fraction_of_the_longer_side_is_cut_off(size: tuple[int, int], resized: tuple[int, int]) -> None:
    assert CROP.plan(*size).resized == resized


@given(sides, sides, st.integers(1, 4096))
def test_naflex_is_whole_patches_up_to_the_most_and_as_transformers_has_it(width: int, height: int, most: int) -> None:
    plan = NaFlex(16, most, "bilinear").plan(width, height)
    assert plan.num_tokens == plan.num_patches <= most
    assert (plan.height, plan.width) == get_image_size_for_max_num_patches(height, width, 16, most)
    assert plan.height == 16 * plan.grid.h and plan.width == 16 * plan.grid.w


@given(sides, sides, st.integers(1, 10**6))
def test_a_requests_area_becomes_whole_patches(width: int, height: int, area: int) -> None:
    plan = NAFLEX.plan(width, height, max_pixels=area)
    assert plan == NaFlex(16, max(1, area // 256), "bilinear").plan(width, height)
    assert plan.height * plan.width <= max(area, 256)


def test_the_area_of_so_many_tokens_gives_no_more() -> None:
    assert NAFLEX.max_pixels == 256 * 256 and NAFLEX.pixels_for_tokens(100) == 100 * 256
    assert NAFLEX.plan(4000, 3000, max_pixels=NAFLEX.pixels_for_tokens(100)).num_tokens <= 100


@given(sides, sides)
def test_patches_of_14_follow_the_same_smart_rule(width: int, height: int) -> None:
    if max(width, height) > 200 * min(width, height):
        return
    plan = SmartResize(14, 2, 3136, 12_845_056).plan(width, height)
    assert (plan.height, plan.width) == smart_resize(height, width, 28, 3136, 12_845_056)
