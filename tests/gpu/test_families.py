"""Every family on a GPU: replay equals the direct call equals alone, bit for bit, and is near transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from foveal.bench.feeder import Feeder
from foveal.gpu.layout import Step, num_tokens
from foveal.types import Output
from tests.unit.gpu.bench import Picture, picture
from tests.unit.gpu.references import CASES, Answer, Case

pytestmark = pytest.mark.gpu
TOKENS, POOLED = Output("tokens", "float32"), Output("pooled", "float32")


class Served:
    """A family's tower behind graphs, and transformers' model beside it."""

    def __init__(self, case: Case, folder: Path, dtype: torch.dtype) -> None:
        self.model: Any = case.write(folder)
        self.case, grids = case, case.grids * (3 if len(case.grids) == 1 else 1)
        self.pictures = [picture(i, height, width) for i, (height, width) in enumerate(grids)]
        geometry = Feeder(folder, [Step(64, 1)], dtype, dummy_weights=False).tower.geometry
        tokens = sum(num_tokens(p.height, p.width, geometry) for p in self.pictures)
        # no multiple of a picture's tokens, so that some of each pack is padding
        self.budget = tokens + 5
        self.feeder = Feeder(folder, [Step(self.budget, len(grids) + 2)], dtype, dummy_weights=False)
        self.feeder.capture_all()

    def encode(self, pictures: list[Picture], budget: int, output: Output) -> list[np.ndarray[Any, Any]]:
        made = []
        for shown in pictures:
            rows = self.feeder.arenas["rows"].allocate(shown.rows.nbytes)
            rows.view[:] = shown.rows.reshape(-1)
            made.append((*self.feeder.item(rows.span, shown.height, shown.width, output), rows))
        done = self.feeder.submit([item for item, _, _ in made], budget).finish()
        assert not done.failures, done.failures
        return [block.view.view(np.float32).copy() for _, block, _ in made]

    def wanted(self, shown: Picture) -> Answer:
        return self.case.answer(self.model, shown)


@pytest.fixture(scope="module", params=CASES, ids=lambda case: case.name)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Served:
    return Served(request.param, tmp_path_factory.mktemp("family") / "model", torch.bfloat16)


@pytest.mark.parametrize("output", [TOKENS, POOLED], ids=["tokens", "pooled"])
def test_replay_equals_direct_call_equals_alone_over_poisoned_buffers(served: Served, output: Output) -> None:
    feeder, step = served.feeder, Step(served.budget, len(served.pictures) + 2)
    for tensor in (feeder.buffers.answers.tokens, feeder.buffers.answers.results, feeder.runner.staging.answers.tokens):
        tensor.fill_(float("nan"))
    feeder.buffers.packed.fill_(255)
    torch.cuda.synchronize()
    replayed = served.encode(served.pictures, served.budget, output)
    graph = feeder.graphs._graphs.pop(step)
    direct = served.encode(served.pictures, served.budget, output)
    feeder.graphs._graphs[step] = graph
    alone = [served.encode([shown], served.budget, output)[0] for shown in served.pictures]
    for first, second, third in zip(replayed, direct, alone, strict=True):
        assert first.tobytes() == second.tobytes() == third.tobytes()


@pytest.mark.parametrize("output", [TOKENS, POOLED], ids=["tokens", "pooled"])
def test_low_precision_is_near_transformers(served: Served, output: Output) -> None:
    for shown, found in zip(served.pictures, served.encode(served.pictures, served.budget, output), strict=True):
        answer = served.wanted(shown)
        wanted = (answer.tokens if output.kind == "tokens" else answer.pooled).numpy().reshape(-1)
        assert np.linalg.norm(found - wanted) <= 4e-2 * np.linalg.norm(wanted)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_float32_equals_transformers(case: Case, tmp_path: Path) -> None:
    served = Served(case, tmp_path / "model", torch.float32)
    for output in (TOKENS, POOLED):
        for shown, found in zip(served.pictures, served.encode(served.pictures, served.budget, output), strict=True):
            answer = served.wanted(shown)
            wanted = (answer.tokens if output.kind == "tokens" else answer.pooled).numpy().reshape(-1)
            assert np.linalg.norm(found - wanted) <= 1e-5 * np.linalg.norm(wanted)
