"""Dummy weights: the same on every machine, and lively enough that pictures differ."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import torch

from foveal.gpu.dummy import draw, dummy_weights
from foveal.gpu.layout import Step
from tests.unit.gpu.bench import Bench, picture


def test_a_tensor_depends_on_its_name_alone() -> None:
    shape = torch.Size((7, 5))
    first = draw("blocks.0.attn.qkv.weight", shape)
    torch.manual_seed(1)
    torch.rand(3)
    assert torch.equal(first, draw("blocks.0.attn.qkv.weight", shape))
    assert not torch.equal(first, draw("blocks.1.attn.qkv.weight", shape))
    wanted = {"x.weight": shape, "y.bias": torch.Size((3,))}
    backwards = dict(reversed(wanted.items()))
    assert all(torch.equal(t, dummy_weights(backwards)[n]) for n, t in dummy_weights(wanted).items())


def test_the_bits_are_the_same_on_every_machine() -> None:
    drawn = draw("blocks.0.mlp.linear_fc1.weight", torch.Size((64, 32)))
    assert hashlib.sha256(drawn.numpy().tobytes()).hexdigest()[:16] == "37a1635ffd2c05ab"


def test_scales_follow_the_part() -> None:
    matrix = draw("blocks.0.mlp.linear_fc1.weight", torch.Size((400, 300)))
    assert abs(float(matrix.std()) * 300**0.5 - 1.1) < 0.02 and abs(float(matrix.mean())) < 0.01
    norm, bias = draw("norm1.weight", torch.Size((500,))), draw("norm1.bias", torch.Size((500,)))
    assert abs(float(norm.mean()) - 1) < 0.05 and 0.15 < float(norm.std()) < 0.25
    assert abs(float(bias.mean())) < 0.05 and 0.05 < float(bias.std()) < 0.15


def test_the_built_in_tells_pictures_apart(tiny: Path) -> None:
    bench = Bench(tiny, [Step(64, 4)], dummy=True)
    dark, light = picture(1, 8, 8, 768), picture(2, 8, 8, 768)
    dark.rows[:], light.rows[:] = 40 + dark.rows // 8, 180 + light.rows // 8
    first, second = (rows.mean(0) for rows in bench.encode([dark, light], 64))
    assert 0.3 < np.sqrt((first**2).mean()) < 3.0
    assert first @ second / np.linalg.norm(first) / np.linalg.norm(second) < 0.95
