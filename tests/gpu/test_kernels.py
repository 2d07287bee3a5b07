"""The compiled kernels compute what PyTorch's own operations compute on the same device, graphs included."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from foveal.gpu.inputs import Inputs
from foveal.gpu.ops import PositionTables, choose_ops
from foveal.gpu.plain_ops import PlainOps
from foveal.gpu.positions import rope_frequencies
from tests.unit.gpu import packs
from tests.unit.gpu.packs import drawn, pack, used_rows

pytestmark = pytest.mark.gpu
PLAIN = PlainOps()
close = partial(packs.close, atol=1e-4, rtol=1e-4)
CUDA = torch.device("cuda", 0)
HIDDEN, HEADS = 1152, 16
GRIDS = [(2, 2), (28, 30), (16, 64), (2, 46), (64, 64), (10, 18)]
SQUARES = [(16, 16)] * 5
every_dtype = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)


@pytest.fixture(scope="module", autouse=True)
def no_gradients() -> Any:
    with torch.inference_mode():
        yield


def on_gpu(seed: int, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return drawn(seed, *shape, dtype=dtype, device="cuda")


def position_tables(name: str) -> PositionTables:
    """Those of the families there are, and one of everything."""
    bias, frequencies = on_gpu(1, HIDDEN), rope_frequencies(72, 10000.0, CUDA)
    interpolated, antialiased, fixed = on_gpu(2, 48**2, HIDDEN), on_gpu(3, 256, HIDDEN), on_gpu(4, 261, HIDDEN)
    return {
        "qwen3": PositionTables(2, bias=bias, interpolated=interpolated, frequencies=frequencies),
        "qwen2": PositionTables(2, frequencies=frequencies),
        "qwen2.5": PositionTables(2, window=4, frequencies=frequencies),
        "naflex": PositionTables(1, bias=bias, antialiased=antialiased),
        "dino": PositionTables(1, prefix_rows=5, fixed=fixed),
        "all": PositionTables(1, 5, 0, bias, fixed, interpolated, antialiased, frequencies),
    }[name]


def pack_for(tables: PositionTables) -> Inputs:
    grids = GRIDS if tables.fixed is None else SQUARES
    return pack(grids, tables.merge_size, tables.prefix_rows, spare=10, padding=37, device="cuda")


@every_dtype
@pytest.mark.parametrize("name", ["qwen3", "qwen2", "qwen2.5", "naflex", "dino", "all"])
def test_rows_are_placed(name: str, dtype: torch.dtype) -> None:
    tables = position_tables(name)
    inputs = pack_for(tables)
    used = used_rows(inputs)
    patches = on_gpu(5, inputs.rows.shape[0], HIDDEN, dtype=dtype)
    wanted = PLAIN.embed_positions(inputs, patches, tables)
    patches[used:] = torch.nan
    if tables.prefix_rows:
        for start in inputs.cu_seqlens[: len(SQUARES)].tolist():
            patches[start : start + tables.prefix_rows] = torch.nan
    found = choose_ops(CUDA).embed_positions(inputs, patches, tables)
    assert found.x.dtype == dtype and found.x.isfinite().all()
    close(found.x[:used], wanted.x[:used])
    for mine, plain in zip(found[1:], wanted[1:], strict=True):
        assert (mine is None) == (plain is None)
        if mine is not None and plain is not None:
            close(mine[:used], plain[:used])


@every_dtype
@pytest.mark.parametrize("head_dim", [64, 72, 80, 128])
@pytest.mark.parametrize("windowed", [False, True], ids=["items", "windows"])
def test_attention(windowed: bool, head_dim: int, dtype: torch.dtype) -> None:
    ops = choose_ops(CUDA)
    inputs = pack(GRIDS, spare=10, padding=37, device="cuda")
    rows, used = inputs.rows.shape[0], used_rows(inputs)
    tables = PositionTables(2, window=4, frequencies=rope_frequencies(head_dim, 10000.0, CUDA))
    turning = PLAIN.embed_positions(inputs, on_gpu(6, rows, 4), tables)
    qkv = on_gpu(7, rows, 3, 4, head_dim, dtype=dtype)
    qkv[used:] = torch.nan
    for embedded in (turning, turning._replace(cos=None, sin=None)):
        calls = [
            o.window_attention(embedded) if windowed else o.attention(inputs.cu_seqlens, embedded) for o in (ops, PLAIN)
        ]
        found, wanted = (call(qkv.clone()) for call in calls)
        close(found[:used], wanted[:used])
        assert found[used:].eq(0).all()


@every_dtype
@pytest.mark.parametrize("width", [384, 1152, 4608])
@pytest.mark.parametrize("kind", ["layer", "layer without bias", "rms"])
def test_norms(kind: str, width: int, dtype: torch.dtype) -> None:
    ops = choose_ops(CUDA)
    norm = nn.RMSNorm(width, eps=1e-6) if kind == "rms" else nn.LayerNorm(width, eps=1e-6, bias=kind == "layer")
    norm.to(CUDA, dtype)
    for i, parameter in enumerate(norm.parameters()):
        parameter.data = 1 + 0.1 * on_gpu(8 + i, width, dtype=dtype)
    x, y = on_gpu(10, 300, width, dtype=dtype), on_gpu(11, 300, width, dtype=dtype)
    close(ops.add_norm(x, None, norm), PLAIN.add_norm(x, None, norm))
    mine, plain = x.clone(), x.clone()
    close(ops.add_norm(mine, y, norm), PLAIN.add_norm(plain, y, norm))
    assert torch.equal(mine, plain)


@every_dtype
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("gated", [False, True], ids=["plain", "gated"])
@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "quick_gelu", "silu"])
def test_activations(activation: Any, gated: bool, bias: bool, dtype: torch.dtype) -> None:
    linear = nn.Linear(256, 2 * 3420, bias=bias, device=CUDA, dtype=dtype)
    linear.weight.data.mul_(4)
    x = on_gpu(12, 300, 256, dtype=dtype)
    close(choose_ops(CUDA).activated(x, linear, activation, gated), PLAIN.activated(x, linear, activation, gated))


@every_dtype
def test_pooling(dtype: torch.dtype) -> None:
    ops = choose_ops(CUDA)
    inputs = pack(GRIDS, spare=10, padding=37, device="cuda")
    used = used_rows(inputs)
    rows = on_gpu(13, inputs.rows.shape[0] // 4, 3000, dtype=dtype)
    rows[used // 4 :] = torch.nan
    found, wanted = torch.full((2, 16, 2050), torch.nan, device=CUDA)
    for one, out in ((ops, found), (PLAIN, wanted)):
        one.mean_rows(rows[:, :2050], inputs.cu_seqlens, 4, out)
    close(found, wanted)
    for head_dim in (64, 72, 128):
        kv, query = (
            on_gpu(14, inputs.rows.shape[0], 2, 16, head_dim, dtype=dtype),
            on_gpu(15, 16, head_dim, dtype=dtype),
        )
        kv[used:] = torch.nan
        pooled = ops.pool_attention(query, kv, inputs.cu_seqlens)
        close(pooled, PLAIN.pool_attention(query, kv, inputs.cu_seqlens))
        assert pooled[len(GRIDS) :].eq(0).all()


@every_dtype
def test_pixels_and_row_absmax(dtype: torch.dtype) -> None:
    ops = choose_ops(CUDA)
    rows = torch.arange(256, device=CUDA).to(torch.uint8).repeat(33, 3)
    assert torch.equal(ops.pixels(rows, 128.0, dtype), PLAIN.pixels(rows, 128.0, dtype))
    values = on_gpu(16, 50, 5000, dtype=dtype)
    values[1, 4999], values[2, 17] = -torch.inf, torch.nan
    found = torch.empty(50, device=CUDA)
    ops.row_absmax(values, found)
    assert torch.equal(found[3:], values[3:].abs().amax(1).float())
    assert found[1] == torch.inf and found[2].isnan()


def all_operations(
    inputs: Inputs, patches: torch.Tensor, tables: PositionTables, norm: nn.RMSNorm, linear: nn.Linear
) -> list[torch.Tensor]:
    """One after the other, as a tower calls them."""
    ops, cu_seqlens = choose_ops(CUDA), inputs.cu_seqlens
    embedded = ops.embed_positions(inputs, patches, tables)
    qkv = embedded.x.repeat(1, 3).view(-1, 3, HEADS, 72)
    mixed = ops.attention(cu_seqlens, embedded)(qkv.clone())
    within = ops.window_attention(embedded)(qkv.clone()) if tables.window else mixed.clone()
    normed = ops.add_norm(mixed.flatten(1), within.flatten(1), norm)
    inner = ops.activated(normed, linear, "silu", True)
    mean, row_absmax = (torch.empty(shape, device=CUDA) for shape in ((len(inputs.grids), HIDDEN), len(inner)))
    ops.mean_rows(normed, cu_seqlens, 1, mean)
    ops.row_absmax(inner, row_absmax)
    pooled = ops.pool_attention(qkv[0, 0], qkv[:, 1:], cu_seqlens)
    return [
        embedded.x,
        mixed,
        within,
        normed,
        inner,
        mean,
        row_absmax,
        pooled,
        *(part for part in embedded[1:] if part is not None),
    ]


@pytest.mark.parametrize("name", ["qwen2.5", "all"])
def test_a_graph_follows_what_its_inputs_hold(name: str) -> None:
    tables = position_tables(name)
    inputs = pack_for(tables)
    patches = on_gpu(17, inputs.rows.shape[0], HIDDEN, dtype=torch.bfloat16)
    norm = nn.RMSNorm(HIDDEN, eps=1e-6, device=CUDA, dtype=torch.bfloat16)
    linear = nn.Linear(HIDDEN, 256, device=CUDA, dtype=torch.bfloat16)
    all_operations(inputs, patches, tables, norm, linear)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        static = all_operations(inputs, patches, tables, norm, linear)
    other = [(16, 16)] * 2
    fewer = pack(other, tables.merge_size, tables.prefix_rows, spare=len(inputs.grids) - len(other), device="cuda")
    for shown in (pack_for(tables), fewer, pack_for(tables)):
        inputs.cu_seqlens.copy_(shown.cu_seqlens)
        inputs.grids.copy_(shown.grids)
        graph.replay()
        replayed = [part.clone() for part in static]
        direct = all_operations(inputs, patches, tables, norm, linear)
        assert all(torch.equal(mine, wanted) for mine, wanted in zip(replayed, direct, strict=True))
