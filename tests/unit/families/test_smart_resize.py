"""The resize rule: sides are multiples, areas within bounds, and the numbers of the reference processor."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveal.errors import AspectRatio
from foveal.families.smart_resize import SmartResize

RULE = SmartResize(patch_size=16, merge_size=2, min_pixels=65_536, max_pixels=16_777_216)
sides = st.integers(1, 20_000)


@pytest.mark.parametrize(
    ("size", "resized"),
    [
        ((96, 64), (320, 224)),
        ((512, 512), (512, 512)),
        ((1500, 40), (1568, 64)),
        ((1, 1), (256, 256)),
        ((500, 19), (1344, 64)),
        ((1920, 1080), (1920, 1088)),
    ],
)
def test_known_sizes_come_out_as_the_reference_has_them(size: tuple[int, int], resized: tuple[int, int]) -> None:
    plan = RULE.plan(*size)
    assert (plan.width, plan.height) == resized
    assert plan.num_tokens * 4 == plan.num_patches == plan.grid.num_patches


@given(sides, sides)
def test_sides_are_whole_tokens_and_areas_within_bounds(width: int, height: int) -> None:
    if max(width, height) > 200 * min(width, height):
        with pytest.raises(AspectRatio):
            RULE.plan(width, height)
        return
    plan = RULE.plan(width, height)
    assert plan.width % 32 == 0 and plan.height % 32 == 0
    assert RULE.min_pixels <= plan.width * plan.height <= RULE.max_pixels


@given(sides, sides, st.integers(1, 10**7))
def test_a_callers_limit_holds_even_below_the_checkpoints_minimum(width: int, height: int, most: int) -> None:
    if max(width, height) > 200 * min(width, height):
        return
    plan = RULE.plan(width, height, max_pixels=most)
    thinnest = 32 * max(plan.width, plan.height)  # a side cannot be less than one token
    assert plan.width * plan.height <= max(most + 32 * (plan.width + plan.height), thinnest)


def test_the_reference_itself_agrees_on_many_sizes() -> None:
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize as reference

    for width in (1, 3, 31, 48, 333, 900, 1280, 4001, 9999):
        for height in (1, 17, 40, 224, 720, 1999, 5000):
            if max(width, height) <= 200 * min(width, height):
                plan = RULE.plan(width, height)
                assert (plan.height, plan.width) == reference(height, width, 32, RULE.min_pixels, RULE.max_pixels)
