"""Every family computes what transformers computes: tokens and pooled rows, alone and packed, in every shape."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from foveal.gpu.layout import Step
from foveal.types import Output
from tests.unit.gpu.bench import TOKENS, Bench, Picture, closeness, picture
from tests.unit.gpu.references import CASES, Case

POOLED = Output("pooled", "float32")


@pytest.fixture(scope="module", params=CASES, ids=lambda case: case.name)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Case, Any, Bench]:
    case: Case = request.param
    folder = tmp_path_factory.mktemp("family") / case.name
    model = case.write(folder)
    pictures = shown(case)
    geometry = Bench(folder, [Step(1, 1)]).tower.geometry
    tokens = sum(geometry.prefix_rows + p.height * p.width // geometry.merge_area for p in pictures)
    return case, model, Bench(folder, [Step(tokens, len(pictures)), Step(tokens + 40, len(pictures) + 3)])


def shown(case: Case) -> list[Picture]:
    """One picture of each shape, and of a tower that takes one shape three."""
    grids = case.grids * (3 if len(case.grids) == 1 else 1)
    return [picture(i, height, width) for i, (height, width) in enumerate(grids)]


def test_a_lone_picture_matches_transformers(served: tuple[Case, Any, Bench]) -> None:
    case, model, bench = served
    for one in shown(case):
        wanted = case.answer(model, one)
        for budget in (0, max(bench.runner.ladder)):
            _, (tokens, pooled) = bench.run([one, one], budget, [TOKENS, POOLED])
            check(tokens.view.view(np.float32).reshape(wanted.tokens.shape), wanted.tokens)
            check(pooled.view.view(np.float32)[None], wanted.pooled[None])


def test_packed_pictures_match_transformers(served: tuple[Case, Any, Bench]) -> None:
    case, model, bench = served
    pictures = shown(case)
    for output in (TOKENS, POOLED):
        done, blocks = bench.run(pictures, min(bench.runner.ladder), [output] * len(pictures))
        assert not done.failures
        for one, block in zip(pictures, blocks, strict=True):
            answer = case.answer(model, one)
            wanted = answer.tokens if output.kind == "tokens" else answer.pooled[None]
            check(block.view.view(np.float32).reshape(wanted.shape), wanted)


def check(found: Any, wanted: torch.Tensor) -> None:
    cosine, error = closeness(found, wanted.numpy())
    assert cosine >= 0.99999 and error <= 1e-4
