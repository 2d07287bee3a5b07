"""Packs: company and place do not matter, leftovers do not matter, capacities hold, answers have the asked form."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import ml_dtypes
import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from foveal.gpu.inputs import Inputs, Outputs
from foveal.gpu.layout import BadPack, Step
from foveal.gpu.runner import Runner
from foveal.ipc.messages import PackItem, RunPack, Span
from foveal.types import Output
from tests.unit.gpu.bench import WIDTH, Bench, picture

NOISE = 2e-5
"""Of float32 between budgets, whose matrices have other shapes."""


@pytest.fixture
def poisoned_memory() -> Iterator[None]:
    """Every tensor that torch makes without content is full of NaN."""
    was = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    assert torch.utils.deterministic.fill_uninitialized_memory
    yield
    torch.use_deterministic_algorithms(was)


@pytest.mark.parametrize("budget", [24, 64, 160])
def test_the_same_picture_has_the_same_bits_in_every_place_of_a_budget(bench: Bench, budget: int) -> None:
    shown, others = picture(0, 4, 6), [picture(i, 2, 2 * i) for i in (1, 2, 4)]
    (alone,) = bench.encode([shown], budget)
    for place in range(4):
        pack = [*others[:place], shown, *others[place:]]
        assert bench.encode(pack, budget)[place].tobytes() == alone.tobytes()
    for rows in bench.encode([shown] * 4, budget):
        assert rows.tobytes() == alone.tobytes()


def test_what_the_buffers_held_before_changes_nothing(bench: Bench, poisoned_memory: None) -> None:
    pack = [picture(3, 4, 4), picture(4, 2, 6)]
    clean = bench.encode(pack, 160)
    bench.buffers.rows.fill_(255)
    bench.buffers.answers.tokens.fill_(torch.nan)
    bench.buffers.answers.results.fill_(torch.nan)
    bench.buffers.metadata.fill_(1 << 30)
    again = bench.encode(pack, 160)
    assert [rows.tobytes() for rows in again] == [rows.tobytes() for rows in clean]
    assert bench.buffers.answers.tokens.isfinite().all(), "padding rows must be finite too"


def test_small_large_small_gives_the_small_one_again(bench: Bench) -> None:
    small, large = [picture(1, 2, 4)], [picture(2, 20, 30)]
    before = bench.encode(small, 8)[0], bench.encode(small, 160)[0]
    bench.encode(large, 160)
    assert bench.encode(small, 8)[0].tobytes() == before[0].tobytes()
    assert bench.encode(small, 160)[0].tobytes() == before[1].tobytes()
    assert np.abs(before[0] - before[1]).max() < NOISE


shapes = st.tuples(st.integers(1, 5).map(lambda n: 2 * n), st.integers(1, 5).map(lambda n: 2 * n))


@settings(max_examples=15, deadline=None)
@given(st.lists(shapes, min_size=1, max_size=6), st.sampled_from([160, 0]))
def test_an_item_does_not_depend_on_its_company(bench: Bench, grids: list[tuple[int, int]], budget: int) -> None:
    pictures = [picture(h * 100 + w, h, w) for h, w in grids]
    for shown, packed in zip(pictures, bench.encode(pictures, budget), strict=True):
        (alone,) = bench.encode([shown], 64)
        assert np.abs(alone - packed).max() < NOISE


def test_a_pack_without_budget_runs_eager_and_may_exceed_the_ladder(bench: Bench) -> None:
    large = picture(9, 30, 30)
    done, _ = bench.run([large], 0)
    assert done.mode == "eager" and not done.failures
    small = picture(8, 4, 4)
    assert bench.run([small], 8)[0].mode == "static"
    assert np.abs(bench.encode([small], 0)[0] - bench.encode([small], 8)[0]).max() < NOISE


def test_times_of_the_parts_are_told(bench: Bench) -> None:
    done, _ = bench.run([picture(1, 4, 4)], 24)
    assert min(done.copy_in_seconds, done.encode_seconds, done.copy_out_seconds) > 0 and done.device_bytes == 0


def test_answers_are_rounded_to_nearest_in_the_asked_dtype(bench: Bench) -> None:
    shown = picture(5, 4, 6)
    (exact,) = bench.encode([shown], 24)
    _, blocks = bench.run([shown] * 2, 24, [Output("tokens", "bfloat16"), Output("tokens", "float16")])
    for block, dtype in zip(blocks, (ml_dtypes.bfloat16, np.float16), strict=True):
        assert block.view.tobytes() == exact.astype(dtype).tobytes()


def test_pooled_is_the_mean_of_the_main_rows(bench: Bench) -> None:
    shown = picture(6, 4, 6)
    (rows,) = bench.encode([shown], 24)
    wishes = [Output("pooled", "float32"), Output("pooled", "float32", True), Output("pooled", "bfloat16", True)]
    _, blocks = bench.run([shown] * 3, 24, wishes)
    mean = rows[:, :40].mean(0)
    assert np.allclose(blocks[0].view.view(np.float32), mean, atol=1e-6)
    unit = blocks[1].view.view(np.float32)
    assert np.allclose(unit, mean / np.linalg.norm(mean), atol=1e-6)
    assert blocks[2].view.tobytes() == unit.astype(ml_dtypes.bfloat16).tobytes()


def refused(bench: Bench, items: list[PackItem], budget: int) -> str:
    before = bench.buffers.rows.clone()
    with pytest.raises(BadPack, match="this is a bug") as caught:
        bench.runner.run(RunPack(1, tuple(items), budget))
    assert torch.equal(before, bench.buffers.rows), "nothing may have been copied"
    return str(caught.value)


def test_every_capacity_is_checked_before_anything_runs(bench: Bench) -> None:
    kept = [bench.item(picture(i, 4, 4)) for i in range(5)]
    items = [item for item, _, _ in kept]
    assert "12 tokens" in refused(bench, items[:3], 8)
    one_token = [bench.item(picture(i, 2, 2)) for i in range(5)]
    assert "5 items" in refused(bench, [item for item, _, _ in one_token], 8)
    assert "budget of 9" in refused(bench, items[:1], 9)
    assert "no items" in refused(bench, [], 8)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"rows": Span(0, 48)}, "for its rows"),
        ({"embedding": Span(0, 4)}, "for its embedding"),
        ({"output": Output("pooled", "float32")}, "for its embedding"),
        ({"grid_h": 3}, "no multiple of 2"),
        ({"grid_w": 0}, "no multiple of 2"),
        ({"grid_h": -4, "grid_w": -4}, "no multiple of 2"),
    ],
    ids=["short-rows", "short-embedding", "other-kind", "odd-grid", "empty-grid", "negative-grid"],
)
def test_spans_that_do_not_fit_the_grid_are_refused(bench: Bench, change: dict[str, object], complaint: str) -> None:
    item, *kept = bench.item(picture(1, 4, 4))
    assert complaint in refused(bench, [msgspec.structs.replace(item, **change)], 24)
    del kept


def test_a_span_outside_the_arena_is_refused(bench: Bench) -> None:
    item, *kept = bench.item(picture(1, 4, 4))
    for change in (
        {"rows": Span(bench.rows.size - 8, item.rows.length)},
        {"rows": Span(-8, item.rows.length)},
        {"embedding": Span(bench.embeddings.size - 8, item.embedding.length)},
        {"embedding": Span(-8, item.embedding.length)},
    ):
        assert "outside an arena" in refused(bench, [msgspec.structs.replace(item, **change)], 24)
    del kept


class Spoiler:
    """A tower that puts a value into the last level of one token."""

    def __init__(self, bench: Bench, token: int, value: float) -> None:
        self.bench, self.token, self.value, self.ops = bench, token, value, bench.tower.ops

    def forward(self, inputs: Inputs, out: Outputs) -> None:
        self.bench.tower.forward(inputs, out)
        out.tokens[self.token, WIDTH - 1] = self.value


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), 1e6], ids=str)
def test_an_item_that_is_not_finite_fails_alone(bench: Bench, monkeypatch: pytest.MonkeyPatch, value: float) -> None:
    pack = [picture(1, 2, 4), picture(2, 4, 4), picture(3, 2, 4)]
    clean = bench.encode(pack, 24)
    spoiler = Spoiler(bench, 3, value)
    monkeypatch.setattr(bench.runner.executable, "tower", spoiler)
    done, blocks = bench.run(pack, 24, [Output("tokens", "float16")] * 3)
    code = "dtype_overflow" if value == 1e6 else "internal"
    assert [failure[:2] for failure in done.failures] == [(1, code)] and "float16" in done.failures[0][2]
    for i in (0, 2):
        assert blocks[i].view.tobytes() == clean[i].astype(np.float16).tobytes()
    # an item that is not finite in any level is not trusted in others either; 1e6 is finite in float32
    assert bool(bench.run(pack, 24, [Output("pooled", "float32")] * 3)[0].failures) == (value != 1e6)
    assert bool(bench.run(pack, 24)[0].failures) == (value != 1e6)


def test_the_runner_takes_any_executable(bench: Bench) -> None:
    class Replay:
        mode = "graph"
        buffers = bench.buffers

        def run(self, step: Step) -> None:
            assert step == bench.runner.ladder[24]
            self.buffers.output(step).tokens.fill_(2.0)

    runner: Runner = replace(bench.runner, executable=Replay())
    item, _, block = bench.item(picture(1, 2, 4))
    assert runner.run(RunPack(7, (item,), 24)).mode == "graph"
    assert (block.view.view(np.float32) == 2.0).all()
