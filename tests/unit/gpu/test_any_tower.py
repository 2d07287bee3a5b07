"""The engine serves towers that it does not know: rows in front, one size, pooling of their own."""

from __future__ import annotations

import random

import ml_dtypes
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from foveal.gpu.executable import DirectCall
from foveal.gpu.layout import Step, num_tokens
from foveal.gpu.start import eager_bytes, steps_of
from foveal.gpu.warm_up import measure
from foveal.ipc.messages import Configure
from foveal.types import Output
from tests.unit.gpu.bench import CPU, PackBench, Picture, picture
from tests.unit.gpu.fake_tower import FIXED, GEOMETRIES, LARGE_BYTE, MERGING, NAN_BYTE, FakeTower

STEPS = (Step(14, 1), Step(42, 3), Step(140, 10))
POOLED = Output("pooled", "float32")
ROWS = Output("tokens", "float32")
BENCHES = {name: PackBench(FakeTower(geometry), STEPS) for name, geometry in GEOMETRIES.items()}


def shown(name: str, seed: int) -> Picture:
    """A picture that this tower takes, of at most 14 tokens, which spoils nothing."""
    geometry, rng = GEOMETRIES[name], random.Random(seed)
    side = geometry.merge_size
    height, width = geometry.fixed_grid or (side * rng.randint(1, 3), side * rng.randint(1, 4))
    made = picture(seed, height, width, geometry.row_bytes)
    made.rows[0, 0] = 0
    return made


def spoiled(name: str, seed: int, byte: int) -> Picture:
    made = shown(name, seed)
    made.rows[0, 0] = byte
    return made


def answers(name: str, pictures: list[Picture], budget: int, outputs: list[Output] | None = None) -> list[bytes]:
    bench = BENCHES[name]
    bench.buffers.rows.fill_(NAN_BYTE)
    done, blocks = bench.run(pictures, budget, outputs or [ROWS] * len(pictures))
    assert not done.failures
    return [block.view.tobytes() for block in blocks]


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(sorted(GEOMETRIES)),
    st.lists(st.tuples(st.integers(0, 9), st.sampled_from([POOLED, ROWS])), min_size=1, max_size=10),
    st.sampled_from([140, 0]),
)
def test_an_answer_depends_on_its_own_rows_only(name: str, wanted: list[tuple[int, Output]], budget: int) -> None:
    pictures, outputs = [shown(name, seed) for seed, _ in wanted], [output for _, output in wanted]
    packed = answers(name, pictures, budget, outputs)
    for one, output, found in zip(pictures, outputs, packed, strict=True):
        assert answers(name, [one], 14, [output]) == [found]


@pytest.mark.parametrize("name", sorted(GEOMETRIES))
def test_small_large_small_gives_the_small_one_again(name: str) -> None:
    small, large = [shown(name, 1)], [shown(name, seed) for seed in range(10)]
    before = answers(name, small, 14), answers(name, small, 140, [POOLED])
    answers(name, large, 140)
    assert (answers(name, small, 14), answers(name, small, 140, [POOLED])) == before


def test_token_rows_of_an_item_are_its_prefix_and_its_patches() -> None:
    (raw,) = answers("fixed", [shown("fixed", 1)], 14)
    rows = np.frombuffer(raw, np.float32).reshape(14, 16)
    assert np.allclose(rows[1], 2 * rows[0]) and np.allclose(rows[0], rows[2:].mean(0) + 3, atol=1e-6)


def test_an_all_pooled_pack_writes_its_pooled_rows_and_nothing_else() -> None:
    bench = BENCHES["fixed"]
    everything = bench.embeddings.whole()
    everything[:] = 0xA5
    done, blocks = bench.run([shown("fixed", seed) for seed in range(4)], 140, [POOLED] * 4)
    assert not done.failures
    for block in blocks:
        assert np.isfinite(block.view.view(np.float32)).all()
        block.view[:] = 0xA5
    assert (everything == 0xA5).all()


@pytest.mark.parametrize("normalize", [False, True], ids=["as-is", "normalised"])
def test_pooled_rows_are_scaled_in_float32_and_rounded_to_nearest(normalize: bool) -> None:
    pictures = [shown("fixed", seed) for seed in range(6)]
    exact = np.stack([np.frombuffer(raw, np.float32) for raw in answers("fixed", pictures, 140, [POOLED] * 6)])
    wanted = F.normalize(torch.from_numpy(exact)).numpy() if normalize else exact
    kinds = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16, "float32": np.float32}
    wishes = [Output("pooled", name, normalize) for name in [*kinds, *kinds]]  # type: ignore[arg-type]
    for wish, row, found in zip(wishes, wanted, answers("fixed", pictures, 140, wishes), strict=True):
        assert found == row.astype(kinds[wish.dtype]).tobytes()


@pytest.mark.parametrize(
    ("byte", "dtype", "code"),
    [
        (NAN_BYTE, "float32", "internal"),
        (NAN_BYTE, "float16", "internal"),
        (LARGE_BYTE, "float16", "dtype_overflow"),
        (LARGE_BYTE, "bfloat16", ""),
        (LARGE_BYTE, "float32", ""),
    ],
    ids=["nan", "nan-in-half", "too-large-for-half", "large-in-bfloat16", "large"],
)
def test_a_pooled_row_that_is_not_finite_fails_its_item_alone(byte: int, dtype: str, code: str) -> None:
    wish = Output("pooled", dtype)  # type: ignore[arg-type]
    pictures = [shown("fixed", 1), spoiled("fixed", 2, byte), shown("fixed", 3)]
    done, blocks = BENCHES["fixed"].run(pictures, 42, [wish] * 3)
    assert [(i, found) for i, found, _ in done.failures] == ([(1, code)] if code else [])
    for _, _, why in done.failures:
        assert ("dtype=bfloat16 or dtype=float32" in why) == (code == "dtype_overflow") and dtype in why
    for i in (0, 2):
        assert answers("fixed", [pictures[i]], 14, [wish]) == [blocks[i].view.tobytes()]


def test_a_bad_pooled_row_does_not_matter_to_those_who_ask_for_tokens() -> None:
    done, _ = BENCHES["fixed"].run([spoiled("fixed", 1, NAN_BYTE), shown("fixed", 2)], 42, [ROWS, POOLED])
    assert not done.failures


@pytest.mark.parametrize("name", sorted(GEOMETRIES))
def test_every_tower_is_measured_at_start(name: str) -> None:
    bench = BENCHES[name]
    bench.buffers.rows.zero_()
    ladder = [Step(7, 1), *STEPS]  # the first holds no picture of the one size
    budgets = measure(DirectCall(bench.tower, bench.buffers, "static"), ladder, CPU)
    assert [budget.tokens for budget in budgets] == [7, 14, 42, 140]
    assert all(budget.milliseconds > 0 for budget in budgets)


def test_a_step_holds_no_more_items_than_can_come_and_always_one() -> None:
    told = {"folder": "", "load_format": "dummy", "device": "cpu", "dtype": "auto", "threads": 0}
    configure = Configure(**told, token_budgets=(100, 577, 5770, 57700), max_items=64, item_tokens=577)  # type: ignore[arg-type]
    assert [step.items for step in steps_of(configure)] == [1, 1, 10, 64]


def test_eager_runs_are_given_memory_for_what_exceeds_the_ladder() -> None:
    assert eager_bytes(1000, budget=50, image=50) == eager_bytes(1000, budget=50, image=10) == 0
    assert eager_bytes(1000, budget=50, image=150) == 2000


def test_capacities_count_prefix_rows() -> None:
    assert num_tokens(3, 4, FIXED) == 14 and num_tokens(4, 6, MERGING) == 6
