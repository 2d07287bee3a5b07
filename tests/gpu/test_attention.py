"""The attention kernel: right, deterministic, and zero on padding, for every head size, over poisoned memory."""

from __future__ import annotations

import random

import pytest
import torch
import torch.nn.functional as F

pytestmark = pytest.mark.gpu


def reference(qkv: torch.Tensor, lengths: list[int]) -> torch.Tensor:
    out = torch.zeros_like(qkv[:, 0], dtype=torch.float32)
    at = 0
    for length in lengths:
        q, k, v = (qkv[at : at + length, i].transpose(0, 1)[None].float() for i in range(3))
        out[at : at + length] = F.scaled_dot_product_attention(q, k, v)[0].transpose(0, 1)
        at += length
    return out


@pytest.mark.parametrize("head_dim", [64, 72, 80, 128])
@pytest.mark.parametrize("patches", [32, 128, 512, 1024, 4096])
def test_random_packs_equal_the_reference_again_and_again(head_dim: int, patches: int) -> None:
    from foveal.gpu.kernels.attention import attend_tiles, tile_table
    from foveal.gpu.kernels.tuning import tile_for

    rng = random.Random(head_dim * patches)
    tile = tile_for(patches, head_dim, torch.bfloat16)
    for _ in range(20):
        heads, lengths, left = rng.choice([4, 16]), [], patches
        while left > 4 and len(lengths) < 16 and (not lengths or rng.random() < 0.9):
            lengths.append(4 * rng.randint(1, max(1, min(left, 1500) // 4)))
            left -= lengths[-1]
        qkv = torch.randn(patches, 3, heads, head_dim, device="cuda", dtype=torch.bfloat16)
        used = patches - left
        qkv[used:] = float("nan")  # what padding holds must not matter
        ends = torch.tensor([0, *lengths, *[0] * (16 - len(lengths))], device="cuda").cumsum(0).int()
        table = tile_table(ends, patches, tile.rows)
        poison = [torch.full((qkv.numel() // 3,), float("nan"), device="cuda", dtype=qkv.dtype) for _ in range(3)]
        del poison
        found = [attend_tiles(qkv, table, tile) for _ in range(3)]
        assert all(torch.equal(found[0], again) for again in found[1:])
        assert found[0][used:].eq(0).all()
        torch.testing.assert_close(found[0][:used].float(), reference(qkv, lengths)[:used], atol=2e-2, rtol=2e-2)
