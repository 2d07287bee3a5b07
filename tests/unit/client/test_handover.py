"""What may reach an LLM server, and what is stopped before."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from foveal_client import InvalidEmbedding
from foveal_client._handover import merge_size_of, validate_embedding, validate_key

DTYPES = [ml_dtypes.bfloat16, np.float16, np.float32]
GRID = (1, 4, 6)


def rows(count: int = 6, width: int = 8, dtype: Any = np.float32) -> np.ndarray:
    return np.full((count, width), -0.5, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_embedding_that_fits_its_grid_passes(dtype: Any) -> None:
    grid = validate_embedding(rows(dtype=dtype), np.array(GRID), merge_size=2, width=8, num_levels=4)
    assert grid == GRID
    assert all(type(side) is int for side in grid)


@pytest.mark.parametrize(
    ("values", "why"),
    [
        (rows(5), "gives 6 tokens, not 5 rows"),
        (rows(7), "gives 6 tokens, not 7 rows"),
        (rows(width=7), "must have 8 columns, not 7"),
        (rows(width=0), "must have 8 columns, not 0"),
        (rows()[None], r"not \[1, 6, 8\]"),
        (rows().ravel(), r"not \[48\]"),
        (rows(dtype=np.float64), "not float64"),
        (rows().astype(np.int64), "not int64"),
        (rows().astype(np.complex64), "not complex64"),
    ],
)
def test_values_of_another_shape_or_kind_are_refused(values: np.ndarray, why: str) -> None:
    with pytest.raises(InvalidEmbedding, match=why):
        validate_embedding(values, GRID, merge_size=2, width=8)


@pytest.mark.parametrize(
    "grid",
    [
        (1, 4),
        (1, 4, 6, 1),
        (1, -4, -6),
        (0, 4, 6),
        (1, 4, 5),
        (1, 3, 8),
        (1.0, 4.0, 6.0),
        ("1", "4", "6"),
        ((1, 4, 6),),
    ],
)
def test_a_grid_that_is_none_is_refused(grid: Any) -> None:
    with pytest.raises(InvalidEmbedding):
        validate_embedding(rows(), grid, merge_size=2)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_one_value_that_is_not_finite_is_found_anywhere(dtype: Any, bad: float) -> None:
    for place in ((0, 0), (5, 7)):
        values = rows(dtype=dtype)
        values[place] = bad
        with pytest.raises(InvalidEmbedding, match="not finite"):
            validate_embedding(values, GRID, merge_size=2)


def test_values_beyond_the_first_chunk_are_looked_at() -> None:
    values = rows(600, 1024)
    values[-1, -1] = np.nan
    with pytest.raises(InvalidEmbedding, match="not finite"):
        validate_embedding(values, (1, 40, 60), merge_size=2)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_largest_numbers_of_a_dtype_are_finite(dtype: Any) -> None:
    values = np.full((6, 8), ml_dtypes.finfo(dtype).max, dtype)
    assert validate_embedding(-values, GRID, merge_size=2) == GRID


def test_levels_must_divide_the_row() -> None:
    with pytest.raises(InvalidEmbedding, match="8 columns do not divide into 3 levels"):
        validate_embedding(rows(), GRID, merge_size=2, num_levels=3)


def test_the_merge_size_follows_from_tokens_and_patches() -> None:
    assert merge_size_of(6, GRID) == 2
    assert merge_size_of(24, GRID) == 1
    for tokens in (0, 5, 12, 25):
        with pytest.raises(InvalidEmbedding, match=f"makes {tokens} tokens out of 24"):
            merge_size_of(tokens, GRID)


@pytest.mark.parametrize("key", ["", "a" * 63, "A" * 64, "../" + "a" * 61, "a" * 64 + "\n", None, 7, b"a" * 64])
def test_what_is_no_content_key_is_refused(key: object) -> None:
    with pytest.raises(InvalidEmbedding, match="64 hex digits"):
        validate_key(key)
