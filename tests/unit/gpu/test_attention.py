"""Items attend to themselves only; what lies behind the last segment is defined; the choice follows the device."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.attention.varlen as varlen
import torch.nn.functional as F

from foveal.gpu.attention import SegmentLoop, VariableLength, choose_attention


def test_the_loop_equals_one_attention_under_a_block_mask() -> None:
    q, k, v = torch.randn(3, 20, 2, 8, generator=torch.Generator().manual_seed(0))
    owner = torch.tensor([0] * 4 + [1] * 12 + [2] * 4)
    mask = owner[:, None] == owner[None, :]
    wanted = F.scaled_dot_product_attention(*(part.transpose(0, 1) for part in (q, k, v)), attn_mask=mask)
    ends = torch.tensor([0, 4, 16, 20, 20, 20], dtype=torch.int32)
    found = SegmentLoop().over(ends, 20)(q, k, v)
    assert torch.allclose(found, wanted.transpose(0, 1), atol=1e-6)


def test_rows_behind_the_last_segment_are_zero_whatever_they_hold() -> None:
    q, k, v = torch.full((3, 12, 2, 8), torch.nan)
    for part in (q, k, v):
        part[:4] = 1.0
    found = SegmentLoop().over(torch.tensor([0, 4, 4], dtype=torch.int32), 12)(q, k, v)
    assert found[:4].eq(1.0).all() and found[4:].eq(0.0).all()


def test_the_kernel_gets_padding_as_a_last_segment_and_a_bound_that_fits_every_pack(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[Any] = []

    def kernel(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *more: Any) -> torch.Tensor:
        seen.extend(more)
        return v

    monkeypatch.setattr(varlen, "varlen_attn", kernel)
    part = torch.zeros(12, 2, 8)
    assert VariableLength().over(torch.tensor([0, 4, 8, 8], dtype=torch.int32), 12)(part, part, part) is part
    assert seen[0].tolist() == seen[1].tolist() == [0, 4, 8, 8, 12] and seen[0].dtype is torch.int32
    assert seen[2:] == [12, 12]


@pytest.mark.parametrize(
    ("device", "dtype", "head_dim", "name"),
    [
        ("cpu", torch.bfloat16, 72, "sdpa-loop"),
        ("cuda", torch.bfloat16, 64, "varlen"),
        ("cuda", torch.float16, 72, "varlen"),
        ("cuda", torch.bfloat16, 80, "varlen"),
        ("cuda", torch.bfloat16, 128, "varlen"),
        ("cuda", torch.float32, 72, "sdpa-loop"),
        ("cuda", torch.bfloat16, 36, "sdpa-loop"),
    ],
)
def test_the_choice_follows_device_dtype_and_head_dim(
    device: str, dtype: torch.dtype, head_dim: int, name: str
) -> None:
    assert choose_attention(torch.device(device), dtype, head_dim).name == name
