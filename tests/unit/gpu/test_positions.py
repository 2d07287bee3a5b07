"""Places, interpolation and angles, each against a plain way to compute the same."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from transformers.vision_utils import get_vision_window_index

from foveal.gpu.inputs import Inputs
from foveal.gpu.plain_ops import rotate
from foveal.gpu.positions import (
    PatchPositions,
    antialiased,
    interpolated,
    locate,
    rope_angles,
    rope_frequencies,
    windowed,
)


def inputs_of(grids: list[tuple[int, int]], num_rows: int, places: int, prefix_rows: int = 0) -> Inputs:
    ends = torch.tensor([0, *(prefix_rows + h * w for h, w in grids)]).cumsum(0).int()
    tail = ends[-1:].expand(places - len(grids))
    unused = torch.zeros((places - len(grids), 2), dtype=torch.int32)
    rows = torch.empty((num_rows, 48), dtype=torch.uint8)
    return Inputs(rows, torch.cat([ends, tail]), torch.cat([torch.tensor(grids, dtype=torch.int32), unused]))


def test_rows_are_located_in_merge_block_order_and_padding_at_the_origin() -> None:
    grids = [(2, 4), (6, 2), (4, 4)]
    positions = locate(inputs_of(grids, 44, 7), 2)
    wanted = [
        (by * 2 + y, bx * 2 + x, h, w)
        for h, w in grids
        for by in range(h // 2)
        for bx in range(w // 2)
        for y in range(2)
        for x in range(2)
    ]
    assert torch.stack(positions[1:], dim=1)[:36].tolist() == [list(place) for place in wanted]
    assert {part.dtype for part in positions} == {torch.int32}
    # padding walks through nothing: one and the same place
    assert torch.stack(positions, dim=1)[36:].tolist() == [[0, 0, 0, 2, 2]] * 8


def test_prefix_rows_come_before_each_pictures_patches() -> None:
    positions = locate(inputs_of([(1, 2), (2, 1)], 12, 3, prefix_rows=3), 1, prefix_rows=3)
    assert positions.local.tolist() == [0, 1, 2, 3, 4] * 2 + [0, 0]
    assert positions.x[:5].tolist() == [0, 0, 0, 0, 1] and positions.y[5:10].tolist() == [0, 0, 0, 0, 1]


def test_a_pack_that_fills_everything_has_no_padding() -> None:
    positions = locate(inputs_of([(2, 2), (2, 2)], 8, 2), 2)
    assert positions.y.tolist() == [0, 0, 1, 1] * 2 and positions.x.tolist() == [0, 1, 0, 1] * 2


sides = st.integers(1, 11).map(lambda side: 2 * side)


@given(st.lists(st.tuples(sides, sides), min_size=1, max_size=4), st.integers(1, 5))
def test_windows_follow_each_other_as_in_the_reference(grids: list[tuple[int, int]], window: int) -> None:
    end = sum(h * w for h, w in grids)
    positions = windowed(inputs_of(grids, end + 8, len(grids) + 2), 2, window)
    index, cu_seqlens = get_vision_window_index(torch.tensor([[1, h, w] for h, w in grids]), 2, window * 8, 4)
    assert (positions.source[:end:4] // 4).tolist() == index.tolist()
    assert positions.order[: end // 4].tolist() == index.argsort().tolist()
    spans = positions.spans[:end].unique_consecutive(dim=0)
    assert spans[:, 0].tolist() == cu_seqlens[:-1].tolist() and spans[:, 1].tolist() == cu_seqlens[1:].tolist()
    # padding stays where it is, and has no window
    assert positions.source[end:].tolist() == list(range(end, end + 8)) and not positions.spans[end:].any()
    assert positions.order[end // 4 :].tolist() == [end // 4, end // 4 + 1]


@pytest.mark.parametrize(("height", "width"), [(2, 2), (8, 6), (1, 9), (23, 2)])
def test_interpolation_is_that_of_torch_with_aligned_corners(height: int, width: int) -> None:
    table = torch.randn(49, 5, generator=torch.Generator().manual_seed(0))
    y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    sizes = torch.tensor([height, width]).int().expand(height * width, 2)
    found = interpolated(
        table, PatchPositions(y.flatten(), y.flatten().int(), x.flatten().int(), sizes[:, 0], sizes[:, 1])
    )
    image = table.view(1, 7, 7, 5).permute(0, 3, 1, 2)
    wanted = F.interpolate(image, (height, width), mode="bilinear", align_corners=True)[0].flatten(1).T
    assert torch.allclose(found, wanted, atol=1e-5)


@pytest.mark.parametrize(("height", "width"), [(7, 7), (8, 6), (1, 9), (23, 2), (1, 1), (40, 40)])
def test_resampling_is_torchs_antialiased_interpolation(height: int, width: int) -> None:
    table = torch.randn(49, 5, generator=torch.Generator().manual_seed(0))
    positions = locate(inputs_of([(height, width)], height * width + 3, 2), 1)
    found = antialiased(table, positions)
    image = table.view(1, 7, 7, 5).permute(0, 3, 1, 2)
    wanted = F.interpolate(image, (height, width), mode="bilinear", align_corners=False, antialias=True)[0].flatten(1).T
    assert torch.allclose(found[: height * width], wanted, atol=1e-5) and bool(found.isfinite().all())


def test_rotation_turns_pairs_and_keeps_lengths() -> None:
    one = torch.ones(3, dtype=torch.int32)
    cos, sin = rope_angles(
        PatchPositions(one, one * 2, one * 5, one, one), rope_frequencies(8, 10000.0, torch.device("cpu"))
    )
    # the first half of the pairs turns with y, the second with x; the first frequency of each is 1
    assert torch.allclose(cos[0, [0, 2]], torch.tensor([2.0, 5.0]).cos())
    x = torch.randn(3, 3, 4, 8, generator=torch.Generator().manual_seed(1))
    turned = x.clone()
    rotate(turned, cos, sin)
    assert torch.allclose(turned.norm(dim=-1), x.norm(dim=-1)) and torch.equal(turned[:, 2], x[:, 2])
    assert torch.allclose(turned[0, 0, 0, 0], x[0, 0, 0, 0] * cos[0, 0] - x[0, 0, 0, 4] * sin[0, 0])
