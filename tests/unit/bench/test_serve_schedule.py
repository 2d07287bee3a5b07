"""Arrivals are drawn before anything is sent, from a seed, and are the same however many processes send them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from foveal.bench.serve.schedule import MAX_REQUESTS, Recipe, carry, draw, read_trace
from foveal.errors import ConfigurationError


def test_constant_arrivals_are_equally_far_apart() -> None:
    schedule = draw(Recipe("constant", num_pictures=3), rate=4, seconds=2, step=0, first_copy=0)
    assert schedule.due.tolist() == [0, 0.25, 0.5, 0.75, 1, 1.25, 1.5, 1.75]


def test_poisson_arrivals_vary_around_the_rate_and_ascend() -> None:
    schedule = draw(Recipe("poisson", num_pictures=3), rate=100, seconds=100, step=0, first_copy=0)
    gaps = np.diff(schedule.due)
    assert 9_500 < len(schedule.due) < 10_500
    assert gaps.min() >= 0 and schedule.due[-1] <= 100
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.1)  # as of an exponential distribution


def test_the_same_seed_draws_the_same_run_and_another_step_another() -> None:
    recipe = Recipe("poisson", num_pictures=5, seed=7)
    first, again = (draw(recipe, 10, 10, step=0, first_copy=copy) for copy in (0, 1000))
    other = draw(recipe, 10, 10, step=1, first_copy=0)
    assert np.array_equal(first.due, again.due) and np.array_equal(first.pictures, again.pictures)
    assert first.due.tolist() != other.due.tolist()
    assert not set(first.copies.flat) & set(again.copies.flat)


def test_shares_together_are_the_whole() -> None:
    schedule = draw(Recipe("poisson", 5, images_per_request=2), 20, 5, step=0, first_copy=0)
    shares = [schedule.share(i, 3) for i in range(3)]
    assert sorted(np.concatenate([share.due for share in shares])) == schedule.due.tolist()
    assert sum(share.copies.size for share in shares) == schedule.copies.size


def test_without_duplicates_no_bytes_are_sent_twice() -> None:
    schedule = draw(Recipe("poisson", 2, images_per_request=3), 50, 10, step=0, first_copy=100)
    assert len(set(schedule.copies.flat)) == schedule.copies.size
    assert schedule.copies.min() == 100


def test_duplicates_are_as_many_as_asked_for_and_repeat_an_earlier_picture() -> None:
    schedule = draw(Recipe("poisson", 9, duplicates=0.3), 100, 50, step=0, first_copy=0)
    seen: dict[int, int] = {}
    repeats = 0
    for picture, copy in zip(schedule.pictures.flat, schedule.copies.flat, strict=True):
        repeats += copy in seen
        assert seen.setdefault(copy, picture) == picture
    assert repeats / schedule.copies.size == pytest.approx(0.3, abs=0.05)


def test_a_run_that_would_not_fit_into_memory_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="more than"):
        draw(Recipe("constant", 1), MAX_REQUESTS, 2, step=0, first_copy=0)


def test_a_trace_starts_at_zero_and_runs_faster_when_told(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("seconds,width,height\n104,640,480\n100,64,48\n")
    trace = read_trace(path, speed=2)
    assert trace.due.tolist() == [0, 2]
    assert trace.sizes == [(64, 48), (640, 480)]
    assert trace.rate == 1


@pytest.mark.parametrize(
    "text", ["", "seconds,width\n1,2\n", "seconds,width,height\n1,x,2\n", "seconds,width,height\n1,0,2\n"]
)
def test_a_file_that_is_no_trace_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=r"trace\.csv"):
        read_trace(path, speed=1)


def test_a_recorded_picture_keeps_its_place() -> None:
    shown = np.array([[2], [0], [1]], np.int32)
    schedule = carry(Recipe("constant", 3), np.array([0.0, 1.0, 2.0]), shown, first_copy=10)
    assert schedule.pictures.tolist() == [[2], [0], [1]]
    assert schedule.copies.tolist() == [[10], [11], [12]]
