"""Items attend to themselves only; what lies behind the last segment is defined; the choice follows the device."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from foveal.gpu import plain_ops
from foveal.gpu.ops import Embedded, choose_ops
from foveal.gpu.plain_ops import PlainOps


def unrotated(windows: torch.Tensor | None = None) -> Embedded:
    return Embedded(torch.empty(0), None, None, windows, None)


def test_the_loop_equals_one_attention_under_a_block_mask() -> None:
    q, k, v = torch.randn(3, 20, 2, 8, generator=torch.Generator().manual_seed(0))
    owner = torch.tensor([0] * 4 + [1] * 12 + [2] * 4)
    mask = owner[:, None] == owner[None, :]
    wanted = F.scaled_dot_product_attention(*(part.transpose(0, 1) for part in (q, k, v)), attn_mask=mask)
    ends = torch.tensor([0, 4, 16, 20, 20, 20], dtype=torch.int32)
    found = PlainOps().attention(ends, unrotated())(torch.stack([q, k, v], 1))
    assert torch.allclose(found, wanted.transpose(0, 1), atol=1e-6)


def test_a_large_picture_attends_a_part_at_a_time_and_can_be_left_between_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(plain_ops, "MIN_PART_ROWS", 4)
    monkeypatch.setattr(plain_ops, "MAX_PART_OPERATIONS", 4 * 20 * 2 * 8 * 6)
    qkv, ends = torch.randn(22, 3, 2, 8, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 20, 22])
    looks: list[int] = []
    ops = PlainOps()
    ops.between_parts = lambda: looks.append(1)
    found = ops.attention(ends, unrotated())(qkv.clone())
    assert len(looks) == 4, "once in the block, and between the parts of 6, 6, 6 and 2 queries"
    monkeypatch.undo()
    assert torch.allclose(found, PlainOps().attention(ends, unrotated())(qkv), atol=1e-6)

    class Left(Exception):
        pass

    def leave() -> None:
        raise Left

    ops.between_parts = leave
    with pytest.raises(Left):
        ops.attention(ends, unrotated())(qkv)


def test_rows_behind_the_last_segment_are_zero_whatever_they_hold() -> None:
    qkv = torch.full((12, 3, 2, 8), torch.nan)
    qkv[:4] = 1.0
    found = PlainOps().attention(torch.tensor([0, 4, 4], dtype=torch.int32), unrotated())(qkv)
    assert found[:4].eq(1.0).all() and found[4:].eq(0.0).all()


def test_windows_attend_to_themselves_only() -> None:
    qkv = torch.randn(14, 3, 2, 8, generator=torch.Generator().manual_seed(0))
    bounds = [(0, 4), (4, 8), (8, 12), (12, 13)]
    windows = torch.tensor([bound for bound in bounds for _ in range(bound[1] - bound[0])] + [(0, 0)])
    found = PlainOps().window_attention(unrotated(windows.int()))(qkv.clone())
    ends = torch.tensor([0, 4, 8, 12, 13], dtype=torch.int32)
    assert torch.allclose(found, PlainOps().attention(ends, unrotated())(qkv), atol=1e-6)
    assert not found[13:].any()


@pytest.mark.parametrize("gated", [True, False])
def test_an_activation_follows_its_matrix(gated: bool) -> None:
    linear, x = torch.nn.Linear(8, 12), torch.randn(5, 8, generator=torch.Generator().manual_seed(2))
    inner = linear(x)
    for activation, call in {"gelu": F.gelu, "silu": F.silu}.items():
        wanted = call(inner[:, :6]) * inner[:, 6:] if gated else call(inner)
        found = PlainOps().activated(x, linear, activation, gated)  # type: ignore[arg-type]
        assert torch.allclose(found, wanted, atol=1e-6)


def test_pools_know_their_items_and_leave_unused_ones_at_zero() -> None:
    ends = torch.tensor([0, 4, 12, 12], dtype=torch.int32)
    rows, out = torch.randn(4, 6, generator=torch.Generator().manual_seed(3)), torch.full((3, 6), torch.nan)
    PlainOps().mean_rows(rows, ends, 4, out)
    assert torch.allclose(out, torch.stack([rows[0], rows[1:3].mean(0), torch.zeros(6)]))
    query, kv = torch.randn(2, 8), torch.randn(14, 2, 2, 8)
    mixed = PlainOps().pool_attention(query, kv, ends)
    scores = (query * kv[4:12, 0]).sum(-1) / 8**0.5
    assert torch.allclose(mixed[1], (scores.softmax(0)[..., None] * kv[4:12, 1]).sum(0), atol=1e-5)
    assert not mixed[2].any()


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
