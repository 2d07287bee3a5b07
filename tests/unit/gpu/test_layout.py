"""Where items lie, in which bytes they travel, and what is refused."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from foveal.gpu.buffers import Buffers
from foveal.gpu.copy_plan import Copy, joined, rows_in, tokens_out
from foveal.gpu.layout import BadPack, Layout, Room, Step, checked_layout, embedding_bytes, lay_out, num_tokens
from foveal.gpu.towers.protocol import Geometry
from foveal.ipc.messages import PackItem, RunPack, Span
from foveal.types import DTYPE_BYTES, Output
from tests.unit.gpu.bench import CPU
from tests.unit.gpu.fake_tower import FIXED, FREE, GEOMETRIES, MERGING

WISHES = [Output(kind, dtype) for kind in ("tokens", "pooled") for dtype in DTYPE_BYTES]


@st.composite
def packs(draw: st.DrawFn) -> tuple[Geometry, list[PackItem], Room]:
    """Items whose spans lie in any order in their arenas, with and without gaps."""
    geometry = GEOMETRIES[draw(st.sampled_from(sorted(GEOMETRIES)))]
    sides = st.integers(1, 5).map(lambda n: n * geometry.merge_size)
    grids = st.just(geometry.fixed_grid) if geometry.fixed_grid else st.tuples(sides, sides)
    wanted = draw(st.lists(st.tuples(grids, st.sampled_from(WISHES)), min_size=1, max_size=8))
    items = [PackItem(Span(0, h * w * geometry.row_bytes), h, w, Span(0, 0), output) for (h, w), output in wanted]
    rows = _placed(draw, [item.rows.length for item in items])
    embeddings = _placed(draw, [embedding_bytes(item, geometry) for item in items])
    made = [
        PackItem(row, item.grid_h, item.grid_w, embedding, item.output)
        for item, row, embedding in zip(items, rows, embeddings, strict=True)
    ]
    ends = (max(span.offset + span.length for span in spans) for spans in (rows, embeddings))
    return geometry, made, Room(*ends)


def _placed(draw: st.DrawFn, lengths: list[int]) -> list[Span]:
    spans: dict[int, Span] = {}
    at = 0
    for i in draw(st.permutations(range(len(lengths)))) if draw(st.booleans()) else range(len(lengths)):
        at += draw(st.sampled_from([0, 0, 0, 64]))
        spans[i] = Span(at, lengths[i])
        at += lengths[i]
    return [spans[i] for i in range(len(lengths))]


def laid(geometry: Geometry, items: list[PackItem], room: Room) -> Layout:
    return checked_layout(RunPack(1, tuple(items), 0), None, geometry, room)


@given(packs())
def test_items_follow_each_other_prefix_first(pack: tuple[Geometry, list[PackItem], Room]) -> None:
    geometry, items, room = pack
    layout = laid(geometry, items, room)
    assert layout.num_items == len(items)
    rows = 0
    for item, patches, tokens in zip(items, layout.patches(), layout.tokens(), strict=True):
        assert patches.start == rows + geometry.prefix_rows
        rows = patches.stop
        assert patches.stop - patches.start == item.grid_h * item.grid_w
        assert tokens.stop - tokens.start == num_tokens(item.grid_h, item.grid_w, geometry)
    assert layout.num_rows == rows and layout.num_tokens == layout.tokens()[-1].stop


def spread(copies: list[Copy], size: int, reverse: bool = False) -> np.ndarray:
    """For each byte of the target where it came from, -1 for none; no byte may be written twice."""
    origin = np.full(size, -1)
    for target, source, num_bytes in copies:
        assert target >= 0 and num_bytes > 0 and target + num_bytes <= size, "a copy leaves its target"
        assert (origin[target : target + num_bytes] == -1).all(), "two copies overlap"
        origin[target : target + num_bytes] = np.arange(source, source + num_bytes)
    return origin


@given(packs())
def test_every_patch_row_comes_in_once_and_prefix_rows_stay(pack: tuple[Geometry, list[PackItem], Room]) -> None:
    geometry, items, room = pack
    layout = laid(geometry, items, room)
    origin = spread(rows_in(layout, items, geometry.row_bytes), layout.num_rows * geometry.row_bytes)
    wanted = np.full((layout.num_rows, geometry.row_bytes), -1)
    for item, place in zip(items, layout.patches(), strict=True):
        wanted[place] = np.arange(item.rows.offset, item.rows.offset + item.rows.length).reshape(-1, geometry.row_bytes)
    assert (origin.reshape(wanted.shape) == wanted).all()


@given(packs())
def test_every_token_row_that_is_asked_for_goes_out_once_and_nothing_else(
    pack: tuple[Geometry, list[PackItem], Room],
) -> None:
    geometry, items, room = pack
    layout = laid(geometry, items, room)
    plan = tokens_out(layout, items, geometry.width)
    assert set(plan) == {item.output.dtype for item in items if item.output.kind == "tokens"}
    for dtype, copies in plan.items():
        row_bytes = geometry.width * DTYPE_BYTES[dtype]
        wanted = np.full(room.embeddings, -1)
        for item, place in zip(items, layout.tokens(), strict=True):
            if item.output.kind == "tokens" and item.output.dtype == dtype:
                span, source = item.embedding, np.arange(place.start * row_bytes, place.stop * row_bytes)
                wanted[span.offset : span.offset + span.length] = source
        assert (spread(copies, room.embeddings) == wanted).all()
        assert all(copy.source % row_bytes == 0 and copy.num_bytes % row_bytes == 0 for copy in copies)


def test_what_is_adjacent_on_both_sides_travels_as_one() -> None:
    assert joined([Copy(0, 100, 8), Copy(8, 108, 4), Copy(12, 112, 4)]) == [Copy(0, 100, 16)]
    apart = [Copy(0, 100, 8), Copy(8, 109, 4), Copy(13, 113, 4)]
    assert joined(apart) == apart


@given(packs())
def test_neighbours_in_a_plan_never_touch_on_both_sides(pack: tuple[Geometry, list[PackItem], Room]) -> None:
    geometry, items, room = pack
    layout = laid(geometry, items, room)
    for copies in (rows_in(layout, items, geometry.row_bytes), *tokens_out(layout, items, geometry.width).values()):
        for (target, source, size), after in pairwise(copies):
            assert (target + size, source + size) != after[:2]


def item(height: int, width: int, geometry: Geometry, output: Output = WISHES[0]) -> PackItem:
    empty = PackItem(Span(0, height * width * geometry.row_bytes), height, width, Span(0, 0), output)
    return PackItem(empty.rows, height, width, Span(0, embedding_bytes(empty, geometry)), output)


@pytest.mark.parametrize(
    ("geometry", "grid", "complaint"),
    [
        (FIXED, (4, 3), "takes 3 x 4 only"),
        (FIXED, (3, 5), "takes 3 x 4 only"),
        (FREE, (0, 3), "no multiple of 1"),
        (MERGING, (2, 3), "no multiple of 2"),
    ],
    ids=["turned", "larger", "empty", "odd"],
)
def test_a_grid_that_the_tower_does_not_take_is_refused(
    geometry: Geometry, grid: tuple[int, int], complaint: str
) -> None:
    with pytest.raises(BadPack, match=complaint):
        laid(geometry, [item(*grid, geometry)], Room(1 << 20, 1 << 20))


def test_prefix_rows_count_in_answers_and_against_the_budget() -> None:
    one, room = item(3, 4, FIXED), Room(1 << 20, 1 << 20)
    assert one.embedding.length == (2 + 12) * 16 * 2 and one.rows.length == 12 * 16
    pack = RunPack(1, (one, one), 28)
    assert checked_layout(pack, Step(28, 2), FIXED, room).num_tokens == 28
    with pytest.raises(BadPack, match="2 items of 28 tokens do not fit"):
        checked_layout(pack, Step(27, 2), FIXED, room)


@pytest.mark.parametrize("name", sorted(GEOMETRIES))
def test_inputs_tell_where_items_lie_and_unused_places_are_empty(name: str) -> None:
    geometry = GEOMETRIES[name]
    grid = geometry.fixed_grid or (2, 4)
    buffers = Buffers(Step(64, 5), geometry, CPU, torch.float32)
    buffers.metadata.fill_(1 << 30)
    layout = lay_out((grid, grid), geometry)
    buffers.place(layout)
    inputs = buffers.inputs(Step(64, 4))
    assert inputs.cu_seqlens.tolist() == [*layout.cu_rows, layout.num_rows, layout.num_rows]
    assert inputs.grids.tolist() == [list(grid)] * 2 + [[geometry.merge_size] * 2] * 2
    assert inputs.rows.shape == (64 * geometry.merge_area, geometry.row_bytes)
    assert inputs.rows.data_ptr() % 256 == buffers.packed.data_ptr() % 256


def test_rows_are_copied_behind_their_prefix_which_keeps_what_it_held() -> None:
    buffers = Buffers(Step(28, 2), FIXED, CPU, torch.float32)
    buffers.rows.fill_(7)
    sources = [torch.full((12 * 16,), value, dtype=torch.uint8) for value in (1, 2)]
    buffers.copy_in(lay_out(((3, 4), (3, 4)), FIXED), sources)
    assert buffers.rows[:, 0].tolist() == [7, 7, *[1] * 12, 7, 7, *[2] * 12]


@pytest.mark.parametrize("num_pooled", [0, 3])
def test_the_head_of_the_results_holds_what_is_needed_of_them(num_pooled: int) -> None:
    answers = Buffers(Step(70, 5), FIXED, CPU, torch.float32).answers
    answers.row_absmax.copy_(torch.arange(70.0))
    answers.pooled.copy_(torch.arange(20.0).view(5, 4))
    copied = np.full(answers.results.numel(), np.nan, np.float32)
    head = answers.result_bytes(28, num_pooled) // 4
    copied[:head] = answers.results[:head].numpy()
    read = answers.read(copied)
    assert read.row_absmax[:28].tolist() == list(range(28))
    assert read.pooled[:num_pooled].tolist() == answers.pooled[:num_pooled].tolist()
    assert np.isnan(read.pooled[num_pooled:]).all()
