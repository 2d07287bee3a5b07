"""The attention kernels: right, deterministic, and zero on padding, for every head size, over poisoned memory."""

from __future__ import annotations

import random

import pytest
import torch
import torch.nn.functional as F

pytestmark = pytest.mark.gpu
HEAD_DIMS = [16, 64, 72, 80, 96, 128]


def reference(qkv: torch.Tensor, lengths: list[int]) -> torch.Tensor:
    out = torch.zeros_like(qkv[:, 0], dtype=torch.float32)
    at = 0
    for length in lengths:
        q, k, v = (qkv[at : at + length, i].transpose(0, 1)[None].float() for i in range(3))
        out[at : at + length] = F.scaled_dot_product_attention(q, k, v)[0].transpose(0, 1)
        at += length
    return out


def drawn_lengths(rng: random.Random, rows: int, longest: int) -> list[int]:
    """Of up to 16 segments that leave some rows over, mostly."""
    lengths, left = [], rows
    while left > 4 and len(lengths) < 16 and (not lengths or rng.random() < 0.9):
        lengths.append(4 * rng.randint(1, max(1, min(left, longest) // 4)))
        left -= lengths[-1]
    return lengths


def poisoned_qkv(rows: int, used: int, heads: int, head_dim: int) -> torch.Tensor:
    """NaN in the padding: what it holds must not matter."""
    qkv = torch.randn(rows, 3, heads, head_dim, device="cuda", dtype=torch.bfloat16)
    qkv[used:] = float("nan")
    return qkv


def poison_free_memory(like: torch.Tensor) -> None:
    """NaN in what will be allocated next."""
    held = [torch.full((like.numel() // 3,), float("nan"), device="cuda", dtype=like.dtype) for _ in range(3)]
    del held


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
@pytest.mark.parametrize("rows", [32, 128, 512, 1024, 4096])
def test_random_packs_equal_the_reference_again_and_again(head_dim: int, rows: int) -> None:
    from foveal.gpu.kernels.attention import attend_tiles, tile_table
    from foveal.gpu.kernels.tuning import tile_for

    rng = random.Random(head_dim * rows)
    tile = tile_for(rows, head_dim, torch.bfloat16)
    for _ in range(20):
        heads, lengths = rng.choice([4, 16]), drawn_lengths(rng, rows, 1500)
        used = sum(lengths)
        qkv = poisoned_qkv(rows, used, heads, head_dim)
        ends = torch.tensor([0, *lengths, *[0] * (16 - len(lengths))], device="cuda").cumsum(0).int()
        table = tile_table(ends, rows, tile.rows)
        poison_free_memory(qkv)
        found = [attend_tiles(qkv, table, tile) for _ in range(3)]
        assert all(torch.equal(found[0], again) for again in found[1:])
        assert found[0][used:].eq(0).all()
        torch.testing.assert_close(found[0][:used].float(), reference(qkv, lengths)[:used], atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
@pytest.mark.parametrize("longest", [4, 64, 300])
def test_random_windows_equal_the_reference_wherever_they_lie(head_dim: int, longest: int) -> None:
    from foveal.gpu.kernels.windows import attend_windows

    rng = random.Random(head_dim * longest)
    for _ in range(10):
        rows = rng.choice([32, 256, 1000])
        heads, lengths = rng.choice([4, 16]), drawn_lengths(rng, rows, longest)
        used = sum(lengths)
        spans = [[sum(lengths[:i]), sum(lengths[: i + 1])] for i, length in enumerate(lengths) for _ in range(length)]
        windows = torch.tensor(spans + [[0, 0]] * (rows - used), device="cuda", dtype=torch.int32)
        qkv = poisoned_qkv(rows, used, heads, head_dim)
        poison_free_memory(qkv)
        found = [attend_windows(qkv, windows) for _ in range(3)]
        assert all(torch.equal(found[0], again) for again in found[1:])
        assert found[0][used:].eq(0).all()
        torch.testing.assert_close(found[0][:used].float(), reference(qkv, lengths)[:used], atol=2e-2, rtol=2e-2)
        # the same bits alone, and beside rows that are not finite
        first, last = rng.choice(spans)
        mine = slice(first, last)
        assert torch.equal(attend_windows(qkv[mine], windows[mine] - first), found[0][mine])
        qkv[:first] = qkv[last:] = float("nan")
        assert torch.equal(attend_windows(qkv, windows)[mine], found[0][mine])
