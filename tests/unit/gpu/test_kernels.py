"""The Triton kernels under Triton's interpreter, on the CPU: against plain ways to compute the same.

Runs where Triton is installed and TRITON_INTERPRET=1 is set; `tests/gpu/test_kernels.py` runs them compiled.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from foveal.gpu.inputs import Inputs
from foveal.gpu.ops import Placed, PlaceTables
from foveal.gpu.plain_ops import PlainOps, rotate
from foveal.gpu.positions import rope_frequencies
from tests.unit.gpu.packs import Grid, at_places, drawn, masked_attention, pack, used_rows

triton = pytest.importorskip("triton")
if not triton.knobs.runtime.interpret:
    pytest.skip("the kernels are compiled for a GPU here", allow_module_level=True)

from foveal.gpu.kernels.attention import attend_tiles, tile_table  # noqa: E402
from foveal.gpu.kernels.fused import FusedOps  # noqa: E402
from foveal.gpu.kernels.resample import resampled  # noqa: E402
from foveal.gpu.kernels.rope import rotate_keys  # noqa: E402
from foveal.gpu.kernels.tuning import Tile  # noqa: E402

FUSED, PLAIN = FusedOps(), PlainOps()
DTYPES = [torch.float32, torch.float16]  # the interpreter cuts what it should round to bfloat16
ODD = [(2, 2), (6, 4), (2, 10), (10, 14), (2, 2)]


def close(found: torch.Tensor, wanted: torch.Tensor) -> None:
    exact = found.dtype == torch.float32
    assert found.shape == wanted.shape
    torch.testing.assert_close(
        found.float(), wanted.float(), atol=2e-6 if exact else 2e-2, rtol=2e-5 if exact else 2e-2
    )


TABLES: dict[str, dict[str, Any]] = {
    "bias": {"merge_size": 2, "bias": drawn(1, 20)},
    "nothing": {"merge_size": 2},
    "stretched": {"merge_size": 2, "bias": drawn(1, 20), "stretched": drawn(2, 49, 20)},
    "resampled": {"merge_size": 1, "bias": drawn(1, 20), "resampled": drawn(3, 64, 20)},
    "fixed": {"merge_size": 1, "fixed": drawn(4, 146, 20), "prefix_rows": 5},
    "windows": {"merge_size": 2, "bias": drawn(1, 20), "window": 3},
    "windows of one": {"merge_size": 1, "stretched": drawn(2, 49, 20), "resampled": drawn(3, 64, 20), "window": 4},
    "prefix and all": {
        "merge_size": 1,
        "prefix_rows": 1,
        "bias": drawn(1, 20),
        "fixed": drawn(4, 142, 20),
        "stretched": drawn(2, 49, 20),
        "resampled": drawn(3, 64, 20),
    },
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rotated", [False, True], ids=["still", "rotated"])
@pytest.mark.parametrize("name", TABLES)
def test_rows_are_placed_as_plain_operations_place_them(name: str, rotated: bool, dtype: torch.dtype) -> None:
    frequencies = rope_frequencies(40, 10000.0, torch.device("cpu")) if rotated else None
    tables = replace(PlaceTables(**TABLES[name]), frequencies=frequencies)
    inputs = pack(ODD, tables.merge_size, tables.prefix_rows)
    used = used_rows(inputs)
    patches = drawn(5, inputs.rows.shape[0], 20, dtype=dtype)
    wanted = PLAIN.placed(inputs, patches, tables)
    patches[used:] = torch.nan
    for start in inputs.cu_seqlens[: len(ODD)]:
        patches[start : start + tables.prefix_rows] = torch.nan
    found = FUSED.placed(inputs, patches, tables)
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
    grids = [(h * merge, w * merge) for h, w in ((1, 1), (5, 9), (4, 4), (9, 2), (3, 11))]
    inputs = pack(grids, merge)
    rows, area = inputs.rows.shape[0], merge**2
    tables = PlaceTables(merge_size=merge, window=side)
    found = FUSED.placed(inputs, torch.arange(rows).float()[:, None], tables)
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


def test_resampling_is_antialiased_interpolation_for_every_size() -> None:
    sizes = [*((n, 1) for n in range(1, 65)), *((1, n) for n in range(1, 65)), (7, 23), (33, 2), (16, 16), (17, 40)]
    inputs = pack(sizes, 1, spare=1, padding=1)
    table = torch.eye(256)
    found = resampled(inputs, inputs.rows.shape[0], table, PlaceTables(merge_size=1))
    image = table.view(1, 16, 16, 256).permute(0, 3, 1, 2)
    wanted = [F.interpolate(image, size, mode="bilinear", antialias=True)[0].flatten(1).T for size in sizes]
    torch.testing.assert_close(found[: used_rows(inputs)], torch.cat(wanted), atol=1e-6, rtol=0)
    assert found.isfinite().all()


def turned_qkv(dtype: torch.dtype, head_dim: int, inputs: Inputs) -> tuple[torch.Tensor, Placed, torch.Tensor]:
    """qkv with NaN in its padding, its places, and the same rotated beforehand."""
    rows, used = inputs.rows.shape[0], used_rows(inputs)
    qkv = drawn(7, rows, 3, 2, head_dim, dtype=dtype)
    qkv[used:] = torch.nan
    tables = PlaceTables(2, window=3, frequencies=rope_frequencies(head_dim, 100.0, torch.device("cpu")))
    placed = PLAIN.placed(inputs, drawn(8, rows, 4), tables)
    turned = qkv.clone()
    assert placed.cos is not None and placed.sin is not None
    rotate(turned, placed.cos, placed.sin)
    return qkv, placed, turned


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("head_dim", [16, 24, 64, 72, 80, 96, 128])
def test_items_attend_to_themselves_alone(head_dim: int, dtype: torch.dtype) -> None:
    inputs = pack(ODD)
    used = used_rows(inputs)
    qkv, placed, turned = turned_qkv(dtype, head_dim, inputs)
    owner = torch.bucketize(torch.arange(used), inputs.cu_seqlens[1:], right=True)
    found = FUSED.attention(inputs.cu_seqlens, placed._replace(cos=None, sin=None))(qkv.clone())
    close(found[:used], masked_attention(qkv[:used], owner))
    found = FUSED.attention(inputs.cu_seqlens, placed)(qkv.clone())
    close(found[:used], masked_attention(turned[:used], owner))
    assert found[used:].eq(0).all()


@pytest.mark.parametrize("tile", [Tile(16, 16, 4, 2), Tile(64, 128, 4, 2), Tile(128, 64, 4, 4)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("head_dim", [64, 72, 128])
def test_queries_turn_on_the_way_in_as_they_would_in_place(head_dim: int, dtype: torch.dtype, tile: Tile) -> None:
    inputs = pack(ODD)
    qkv, placed, turned = turned_qkv(dtype, head_dim, inputs)
    assert placed.cos is not None and placed.sin is not None
    rotate_keys(qkv, placed.cos, placed.sin)
    used = used_rows(inputs)
    assert torch.equal(qkv[:used, 1:], turned[:used, 1:])
    tiles = tile_table(inputs.cu_seqlens, qkv.shape[0], tile.rows)
    on_the_way = attend_tiles(qkv, tiles, tile, placed.cos, placed.sin)
    assert torch.equal(on_the_way, attend_tiles(turned, tiles, tile, None, None))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("head_dim", [16, 64, 72, 80, 128])
def test_windows_attend_to_themselves_alone(head_dim: int, dtype: torch.dtype) -> None:
    inputs = pack(ODD)
    used = used_rows(inputs)
    qkv, placed, turned = turned_qkv(dtype, head_dim, inputs)
    assert placed.windows is not None
    owner = placed.windows[:used, 0]
    found = FUSED.window_attention(placed._replace(cos=None, sin=None))(qkv.clone())
    close(found[:used], masked_attention(qkv[:used], owner))
    found = FUSED.window_attention(placed)(qkv.clone())
    close(found[:used], masked_attention(turned[:used], owner))
    assert found[used:].eq(0).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_windows_have_any_size_and_any_place(dtype: torch.dtype) -> None:
    sizes, padding = [1, 130, 3, 64, 64, 5, 1, 97], 7
    ends = torch.tensor([0, *sizes]).cumsum(0)
    spans = [[int(a), int(b)] for a, b in zip(ends[:-1], ends[1:], strict=True) for _ in range(b - a)]
    used = len(spans)
    windows = torch.tensor(spans + [[0, 0]] * padding, dtype=torch.int32)
    qkv = drawn(9, used + padding, 3, 2, 24, dtype=dtype)
    qkv[used:] = torch.nan
    found = FUSED.window_attention(at_places(qkv, windows=windows))(qkv.clone())
    close(found[:used], masked_attention(qkv[:used], windows[:used, 0]))
    assert found[used:].eq(0).all()
    # bits do not depend on the neighbours, not even on such as are not finite
    first, last = spans[140]
    spoiled = qkv.clone()
    spoiled[first:last] = torch.nan
    others = FUSED.window_attention(at_places(qkv, windows=windows))(spoiled)
    assert others[first:last].isnan().all()
    others[first:last] = found[first:last]
    assert torch.equal(others, found)
    alone = FUSED.window_attention(at_places(qkv, windows=windows[first:last] - first))(qkv[first:last])
    assert torch.equal(alone, found[first:last])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("with_sum", [True, False], ids=["sum", "alone"])
@pytest.mark.parametrize("kind", ["layer", "layer without bias", "rms"])
def test_norms_keep_the_sum_in_place(kind: str, with_sum: bool, dtype: torch.dtype) -> None:
    norm = nn.RMSNorm(37, eps=1e-5) if kind == "rms" else nn.LayerNorm(37, eps=1e-5, bias=kind == "layer")
    norm.requires_grad_(False)
    for i, parameter in enumerate(norm.parameters()):
        parameter.copy_(drawn(10 + i, 37))
    norm.to(dtype)
    x, y = drawn(12, 2, 6, 37, dtype=dtype)
    total = x + y if with_sum else x.clone()
    found = FUSED.add_norm(x, y if with_sum else None, norm)
    assert torch.equal(x, total)
    if kind == "rms" and not with_sum:
        scaled = (x.float() * torch.rsqrt(x.float().pow(2).mean(1, keepdim=True) + 1e-5)).to(dtype)
        assert torch.allclose(found, scaled * norm.weight, atol=1e-6, rtol=1e-6)
    close(found, PLAIN.add_norm(x, None, norm))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("gated", [False, True], ids=["plain", "gated"])
@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "quick_gelu", "silu"])
def test_activations(activation: Any, gated: bool, bias: bool, dtype: torch.dtype) -> None:
    if activation == "gelu_tanh" and bias and not gated:
        pytest.skip("cuBLASLt's epilogue")
    linear = nn.Linear(8, 2 * 1031, bias=bias).requires_grad_(False)
    linear.weight.copy_(drawn(13, 2 * 1031, 8))
    linear.to(dtype)
    x = drawn(14, 3, 8, dtype=dtype)
    close(FUSED.activated(x, linear, activation, gated), PLAIN.activated(x, linear, activation, gated))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("merge", [1, 2])
def test_items_are_averaged_from_some_columns(merge: int, dtype: torch.dtype) -> None:
    inputs = pack([(2, 2), (12, 14), (2, 70)], merge)
    rows = drawn(15, inputs.rows.shape[0] // merge**2, 150, dtype=dtype)
    rows[used_rows(inputs) // merge**2 :] = torch.nan
    found, wanted = torch.full((2, 6, 130), torch.nan)
    FUSED.mean_rows(rows[:, :130], inputs.cu_seqlens, merge**2, found)
    PLAIN.mean_rows(rows[:, :130], inputs.cu_seqlens, merge**2, wanted)
    close(found, wanted)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("head_dim", [16, 72, 80])
def test_a_query_pools_each_item(head_dim: int, dtype: torch.dtype) -> None:
    inputs = pack([(1, 1), (12, 14), (5, 13), (8, 8)], 1)
    kv = drawn(16, inputs.rows.shape[0], 2, 3, head_dim, dtype=dtype)
    kv[used_rows(inputs) :] = torch.nan
    query = drawn(17, 3, head_dim, dtype=dtype)
    found = FUSED.pool_attention(query, kv, inputs.cu_seqlens)
    close(found, PLAIN.pool_attention(query, kv, inputs.cu_seqlens))
    assert found[4:].eq(0).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_pixels_and_peaks(dtype: torch.dtype) -> None:
    rows = torch.arange(0, 252, dtype=torch.uint8).view(6, 42)
    assert torch.equal(FUSED.pixels(rows, 128.0, dtype), PLAIN.pixels(rows, 128.0, dtype))
    values = drawn(18, 5, 5000, dtype=dtype)
    values[1, 4999], values[2, 17], values[3, 0] = -torch.inf, torch.nan, -77.0
    found = torch.empty(5)
    FUSED.peaks(values, found)
    assert torch.equal(found[[0, 3, 4]], values[[0, 3, 4]].abs().amax(1).float())
    assert found[1] == torch.inf and found[2].isnan()
