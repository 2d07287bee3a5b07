"""What callers do with an embedding."""

from __future__ import annotations

import builtins
import importlib
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from foveal_client import DType, Embedding, GridTHW, Level, Usage


def embedding(values: np.ndarray, dtype: DType, levels: tuple[Level, ...] = ()) -> Embedding:
    return Embedding(values, GridTHW(1, 4, 4), 4, "m", dtype, "00", "11" * 32, levels, None, {}, Usage(1, 16, 4))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_torch_sees_the_same_memory_in_the_same_dtype(dtype: DType) -> None:
    torch = pytest.importorskip("torch")
    values = np.arange(8).reshape(4, 2).astype(np.dtype(getattr(ml_dtypes, dtype, dtype)))
    tensor = embedding(values, dtype).torch()
    assert tensor.dtype == getattr(torch, dtype)
    assert tensor.tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    values[0, 0] = 5
    assert tensor[0, 0] == 5


def test_torch_copies_memory_that_must_not_be_written() -> None:
    pytest.importorskip("torch")
    values = np.frombuffer(np.ones(8, np.float32).tobytes(), np.float32).reshape(4, 2)
    tensor = embedding(values, "float32").torch()
    tensor[0, 0] = 7
    assert values[0, 0] == 1


def test_torch_without_torch_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(ImportError, match=r"install torch, or use \.numpy"):
        embedding(np.ones((4, 2), np.float32), "float32").torch()


def test_numpy_converts_only_when_asked() -> None:
    values = np.ones((4, 2), ml_dtypes.bfloat16)
    found = embedding(values, "bfloat16")
    assert found.numpy() is values
    assert found.numpy("bfloat16") is values
    assert found.numpy(np.float32).dtype == np.float32


def test_a_level_that_is_not_there_is_named_with_those_that_are() -> None:
    found = embedding(np.ones((4, 2), np.float32), "float32", (Level("main", 0, 2),))
    with pytest.raises(KeyError, match="no level 'top'; this model has: main"):
        found.level("top")
    with pytest.raises(IndexError):
        found.level(1)


def test_levels_of_a_pooled_embedding_are_slices_too() -> None:
    found = embedding(np.arange(4, dtype=np.float32), "float32", (Level("main", 0, 3), Level("rest", 3, 4)))
    assert found.level("rest").tolist() == [3]


def test_printing_an_embedding_stays_short() -> None:
    assert len(repr(embedding(np.ones((4, 2000), np.float32), "float32"))) < 400


def test_a_grid_counts_its_patches() -> None:
    assert GridTHW(2, 3, 4).num_patches == 24
    assert builtins.tuple(GridTHW(2, 3, 4)) == (2, 3, 4)
