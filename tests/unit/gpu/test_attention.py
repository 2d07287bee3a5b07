"""Items attend to themselves only; what lies behind the last segment is defined; the choice follows the device."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from foveal.gpu.ops import PlainOps, choose_ops


def test_the_loop_equals_one_attention_under_a_block_mask() -> None:
    q, k, v = torch.randn(3, 20, 2, 8, generator=torch.Generator().manual_seed(0))
    owner = torch.tensor([0] * 4 + [1] * 12 + [2] * 4)
    mask = owner[:, None] == owner[None, :]
    wanted = F.scaled_dot_product_attention(*(part.transpose(0, 1) for part in (q, k, v)), attn_mask=mask)
    ends = torch.tensor([0, 4, 16, 20, 20, 20], dtype=torch.int32)
    found = PlainOps().attention(ends, 20)(torch.stack([q, k, v], 1))
    assert torch.allclose(found, wanted.transpose(0, 1), atol=1e-6)


def test_rows_behind_the_last_segment_are_zero_whatever_they_hold() -> None:
    qkv = torch.full((12, 3, 2, 8), torch.nan)
    qkv[:4] = 1.0
    found = PlainOps().attention(torch.tensor([0, 4, 4], dtype=torch.int32), 12)(qkv)
    assert found[:4].eq(1.0).all() and found[4:].eq(0.0).all()


def test_a_cpu_computes_with_plain_operations() -> None:
    ops = choose_ops(torch.device("cpu"))
    assert ops.name == "sdpa-loop" and not ops.is_capturable


@pytest.mark.parametrize("with_sum", [True, False])
def test_the_norm_keeps_the_sum_in_place(with_sum: bool) -> None:
    x, y = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(1))
    norm = torch.nn.LayerNorm(8, eps=1e-6)
    total = x + y if with_sum else x.clone()
    found = PlainOps().add_norm(x, y if with_sum else None, norm)
    assert torch.equal(x, total) and torch.allclose(found, norm(total))
