"""The Triton kernels under Triton's interpreter, on the CPU: against plain ways to compute the same.

Runs where Triton is installed and TRITON_INTERPRET=1 is set; `tests/gpu/test_kernels.py` runs them compiled.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import nn

from foveal.gpu.inputs import Inputs
from foveal.gpu.ops import Embedded, PositionTables
from foveal.gpu.plain_ops import PlainOps, rotate
from foveal.gpu.positions import rope_frequencies
from tests.unit.gpu.packs import at_positions, close, drawn, masked_attention, pack, used_rows

triton = pytest.importorskip("triton")
if not triton.knobs.runtime.interpret:
    pytest.skip("the kernels are compiled for a GPU here", allow_module_level=True)

from foveal.gpu.kernels.attention import attend_tiles, tile_table  # noqa: E402
from foveal.gpu.kernels.fused import FusedOps  # noqa: E402
from foveal.gpu.kernels.rope import rotate_in_place  # noqa: E402
from foveal.gpu.kernels.tuning import Tile  # noqa: E402

# numpy warns of what a GPU passes over: overflow to infinity, NaN alone
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
FUSED, PLAIN = FusedOps(), PlainOps()
DTYPES = [torch.float32, torch.float16]  # the interpreter cuts what it should round to bfloat16
ODD = [(2, 2), (8, 10), (2, 6), (2, 2)]


def turned_qkv(dtype: torch.dtype, head_dim: int, inputs: Inputs) -> tuple[torch.Tensor, Embedded, torch.Tensor]:
    """qkv with NaN in its padding, its positions, and the same rotated beforehand."""
    rows, used = inputs.rows.shape[0], used_rows(inputs)
    qkv = drawn(7, rows, 3, 2, head_dim, dtype=dtype)
    qkv[used:] = torch.nan
    tables = PositionTables(2, window=3, frequencies=rope_frequencies(head_dim, 100.0, torch.device("cpu")))
    embedded = PLAIN.embed_positions(inputs, drawn(8, rows, 4), tables)
    turned = qkv.clone()
    assert embedded.cos is not None and embedded.sin is not None
    rotate(turned, embedded.cos, embedded.sin)
    return qkv, embedded, turned


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("head_dim", [16, 24, 64, 72, 80, 96, 128])
def test_items_attend_to_themselves_alone(head_dim: int, dtype: torch.dtype) -> None:
    inputs = pack(ODD)
    used = used_rows(inputs)
    qkv, embedded, turned = turned_qkv(dtype, head_dim, inputs)
    owner = torch.bucketize(torch.arange(used), inputs.cu_seqlens[1:], right=True)
    found = FUSED.attention(inputs.cu_seqlens, embedded._replace(cos=None, sin=None))(qkv.clone())
    close(found[:used], masked_attention(qkv[:used], owner))
    found = FUSED.attention(inputs.cu_seqlens, embedded)(qkv.clone())
    close(found[:used], masked_attention(turned[:used], owner))
    assert found[used:].eq(0).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("head_dim", [64, 72, 128])
def test_queries_and_keys_turn_in_place(head_dim: int, dtype: torch.dtype) -> None:
    inputs = pack(ODD)
    qkv, embedded, turned = turned_qkv(dtype, head_dim, inputs)
    assert embedded.cos is not None and embedded.sin is not None
    rotate_in_place(qkv, embedded.cos, embedded.sin)
    used = used_rows(inputs)
    assert torch.equal(qkv[:used], turned[:used])


@pytest.mark.parametrize("tile", [Tile(16, 16, 4, 2), Tile(64, 128, 4, 2), Tile(128, 64, 4, 4)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_tiles_of_any_size_give_the_same(dtype: torch.dtype, tile: Tile) -> None:
    inputs = pack(ODD)
    qkv, _, _ = turned_qkv(dtype, 72, inputs)
    used = used_rows(inputs)
    owner = torch.bucketize(torch.arange(used), inputs.cu_seqlens[1:], right=True)
    tiles = tile_table(inputs.cu_seqlens, qkv.shape[0], tile.rows)
    close(attend_tiles(qkv, tiles, tile)[:used], masked_attention(qkv[:used], owner))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("head_dim", [16, 64, 72, 80, 128])
def test_windows_attend_to_themselves_alone(head_dim: int, dtype: torch.dtype) -> None:
    inputs = pack(ODD)
    used = used_rows(inputs)
    qkv, embedded, turned = turned_qkv(dtype, head_dim, inputs)
    assert embedded.windows is not None
    owner = embedded.windows[:used, 0]
    found = FUSED.window_attention(embedded._replace(cos=None, sin=None))(qkv.clone())
    close(found[:used], masked_attention(qkv[:used], owner))
    found = FUSED.window_attention(embedded)(qkv.clone())
    close(found[:used], masked_attention(turned[:used], owner))
    assert found[used:].eq(0).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_windows_have_any_size_and_any_place(dtype: torch.dtype) -> None:
    sizes, padding = [1, 130, 3, 64, 64, 5, 1, 97], 7
    ends = torch.tensor([0, *sizes]).cumsum(0)
    spans = [[int(a), int(b)] for a, b in pairwise(ends) for _ in range(b - a)]
    used = len(spans)
    windows = torch.tensor(spans + [[0, 0]] * padding, dtype=torch.int32)
    qkv = drawn(9, used + padding, 3, 2, 24, dtype=dtype)
    qkv[used:] = torch.nan
    found = FUSED.window_attention(at_positions(qkv, windows=windows))(qkv.clone())
    close(found[:used], masked_attention(qkv[:used], windows[:used, 0]))
    assert found[used:].eq(0).all()
    # neighbours change no bit, not even such as are not finite
    first, last = spans[140]
    spoiled = qkv.clone()
    spoiled[first:last] = torch.nan
    others = FUSED.window_attention(at_positions(qkv, windows=windows))(spoiled)
    assert others[first:last].isnan().all()
    others[first:last] = found[first:last]
    assert torch.equal(others, found)
    alone = FUSED.window_attention(at_positions(qkv[first:last], windows=windows[first:last] - first))(qkv[first:last])
    close(alone, found[first:last])


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
def test_pixels_and_row_absmax(dtype: torch.dtype) -> None:
    rows = torch.arange(0, 252, dtype=torch.uint8).view(6, 42)
    assert torch.equal(FUSED.pixels(rows, 128.0, dtype), PLAIN.pixels(rows, 128.0, dtype))
    values = drawn(18, 5, 5000, dtype=dtype)
    values[1, 4999], values[2, 17], values[3, 0] = -torch.inf, torch.nan, -77.0
    found = torch.empty(5)
    FUSED.row_absmax(values, found)
    assert torch.equal(found[[0, 3, 4]], values[[0, 3, 4]].abs().amax(1).float())
    assert found[1] == torch.inf and found[2].isnan()
