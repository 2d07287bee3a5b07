"""Which items fail for values that are no numbers, and which for values that their dtype cannot hold."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from foveal.gpu.copy_out import settle
from foveal.types import Output


@pytest.mark.parametrize(
    ("peak", "dtype", "kind", "code"),
    [
        (65504.0, "float16", "tokens", ""),
        (65536.0, "float16", "tokens", "dtype_overflow"),
        (65536.0, "float16", "pooled", ""),  # of which only the pooled row is rounded
        (1e38, "bfloat16", "tokens", ""),
        (3.4e38, "bfloat16", "tokens", "dtype_overflow"),
        (3.4e38, "float32", "tokens", ""),
        (np.inf, "float16", "tokens", "internal"),
        (np.nan, "float16", "tokens", "internal"),
        (np.nan, "float32", "pooled", "internal"),
    ],
)
def test_the_largest_value_of_an_item_decides(peak: float, dtype: str, kind: str, code: str) -> None:
    place = SimpleNamespace(offset=0, length=16)
    items: Any = [SimpleNamespace(output=Output(kind, dtype), embedding=place) for _ in range(2)]  # type: ignore[arg-type]
    layout: Any = SimpleNamespace(tokens=lambda: [slice(0, 2), slice(2, 4)], num_tokens=4)
    peaks = np.array([1, 2, 1, peak], np.float32)
    results: Any = SimpleNamespace(row_absmax=peaks, pooled=np.ones((2, 4), np.float32))
    place.length = 4 * np.dtype(np.float32 if dtype == "float32" else np.float16).itemsize
    found = settle(layout, items, results, np.zeros(16, np.uint8))
    assert [(i, found_code) for i, found_code, _ in found] == ([(1, code)] if code else [])
    assert all(dtype in why for _, _, why in found)
    if code == "dtype_overflow":
        assert "ask for dtype=" in found[0][2] and f"ask for dtype={dtype}" not in found[0][2]
