"""How rows find their positions, under Triton's interpreter: see `test_kernels.py`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from foveal.gpu.ops import PositionTables
from foveal.gpu.plain_ops import PlainOps
from foveal.gpu.positions import rope_frequencies
from tests.unit.gpu.packs import Grid, close, drawn, pack, used_rows

triton = pytest.importorskip("triton")
if not triton.knobs.runtime.interpret:
    pytest.skip("the kernels are compiled for a GPU here", allow_module_level=True)

from foveal.gpu.kernels.antialias import antialiased  # noqa: E402
from foveal.gpu.kernels.fused import FusedOps  # noqa: E402

FUSED, PLAIN = FusedOps(), PlainOps()
ODD = [(2, 2), (8, 10), (2, 6), (2, 2)]


TABLES: dict[str, dict[str, Any]] = {
    "bias": {"merge_size": 2, "bias": drawn(1, 20)},
    "nothing": {"merge_size": 2},
    "interpolated": {"merge_size": 2, "bias": drawn(1, 20), "interpolated": drawn(2, 49, 20)},
    "antialiased": {"merge_size": 1, "bias": drawn(1, 20), "antialiased": drawn(3, 64, 20)},
    "fixed": {"merge_size": 1, "fixed": drawn(4, 85, 20), "prefix_rows": 5},
    "windows": {"merge_size": 2, "bias": drawn(1, 20), "window": 3},
    "windows of one": {"merge_size": 1, "interpolated": drawn(2, 49, 20), "antialiased": drawn(3, 64, 20), "window": 4},
    "prefix and all": {
        "merge_size": 1,
        "prefix_rows": 1,
        "bias": drawn(1, 20),
        "fixed": drawn(4, 81, 20),
        "interpolated": drawn(2, 49, 20),
        "antialiased": drawn(3, 64, 20),
    },
}


@pytest.mark.parametrize(
    ("rotated", "dtype"), [(False, torch.float32), (True, torch.float16)], ids=["still", "rotated"]
)
@pytest.mark.parametrize("name", TABLES)
def test_rows_are_placed_as_plain_operations_place_them(name: str, rotated: bool, dtype: torch.dtype) -> None:
    frequencies = rope_frequencies(40, 10000.0, torch.device("cpu")) if rotated else None
    tables = replace(PositionTables(**TABLES[name]), frequencies=frequencies)
    inputs = pack(ODD, tables.merge_size, tables.prefix_rows)
    used = used_rows(inputs)
    patches = drawn(5, inputs.rows.shape[0], 20, dtype=dtype)
    wanted = PLAIN.embed_positions(inputs, patches, tables)
    patches[used:] = torch.nan
    for start in inputs.cu_seqlens[: len(ODD)]:
        patches[start : start + tables.prefix_rows] = torch.nan
    found = FUSED.embed_positions(inputs, patches, tables)
    assert found.x.dtype == dtype and found.x.isfinite().all()
    close(found.x[:used], wanted.x[:used])
    for mine, plain in ((found.cos, wanted.cos), (found.sin, wanted.sin)):
        assert (mine is None) == (plain is None) == (not rotated)
        if mine is not None and plain is not None:
            close(mine, plain)
    for mine, plain in ((found.windows, wanted.windows), (found.order, wanted.order)):
        assert (mine is None) == (plain is None) == (not tables.window)
        if mine is not None and plain is not None:
            assert torch.equal(mine, plain)


def in_windows(grid: Grid, merge: int, side: int) -> list[list[tuple[int, int]]]:
    """The tokens of each window, as (y, x), in the order of Qwen2.5-VL."""
    high, wide = grid[0] // merge, grid[1] // merge
    return [
        [(y, x) for y in range(top, min(top + side, high)) for x in range(left, min(left + side, wide))]
        for top in range(0, high, side)
        for left in range(0, wide, side)
    ]


@pytest.mark.parametrize(("merge", "side"), [(2, 4), (2, 1), (1, 3), (2, 100), (3, 2)])
def test_windows_follow_each_other_in_raster_order_and_so_do_their_tokens(merge: int, side: int) -> None:
    grids = [(h * merge, w * merge) for h, w in ((1, 1), (5, 7), (4, 4), (7, 2))]
    inputs = pack(grids, merge)
    rows, area = inputs.rows.shape[0], merge**2
    tables = PositionTables(merge_size=merge, window=side)
    found = FUSED.embed_positions(inputs, torch.arange(rows).float()[:, None], tables)
    source, spans, order, start = [], [], {}, 0
    for grid in grids:
        for window in in_windows(grid, merge, side):
            span = [len(source), len(source) + len(window) * area]
            for y, x in window:
                token = start // area + y * (grid[1] // merge) + x
                order[token] = len(source) // area
                source += range(token * area, (token + 1) * area)
                spans += [span] * area
        start += grid[0] * grid[1]
    padding = range(start // area, rows // area)
    assert found.x[:start, 0].tolist() == source
    assert found.windows is not None and found.windows.tolist() == spans + [[0, 0]] * (rows - start)
    assert found.order is not None
    assert found.order.tolist() == [order[token] for token in range(start // area)] + list(padding)


def test_resampling_is_antialiased_interpolation() -> None:
    lengths = [*range(1, 19), 23, 31, 32, 33, 48, 63, 64]
    sizes = [*((n, 1) for n in lengths), *((1, n) for n in lengths), (7, 23)]
    inputs = pack(sizes, 1, spare=1, padding=1)
    table = torch.eye(256)
    found = antialiased(inputs, inputs.rows.shape[0], table, PositionTables(merge_size=1))
    image = table.view(1, 16, 16, 256).permute(0, 3, 1, 2)
    wanted = [F.interpolate(image, size, mode="bilinear", antialias=True)[0].flatten(1).T for size in sizes]
    torch.testing.assert_close(found[: used_rows(inputs)], torch.cat(wanted), atol=1e-6, rtol=0)
    assert found.isfinite().all()
