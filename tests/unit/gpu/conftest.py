"""One small checkpoint with transformers' weights, made once, and a runner on it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from safetensors.torch import save_file
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLVisionModel

from foveal.gpu.layout import Step
from tests.unit.gpu.bench import Bench, reference_model, write_folder

STEPS = (Step(8, 4), Step(24, 6), Step(64, 6), Step(160, 12))


@pytest.fixture(scope="session")
def model() -> Qwen3VLVisionModel:
    return reference_model()


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory, model: Qwen3VLVisionModel) -> Path:
    folder = write_folder(tmp_path_factory.mktemp("checkpoint"))
    save_file({f"model.visual.{n}": t for n, t in model.state_dict().items()}, folder / "model.safetensors")
    return folder


@pytest.fixture(scope="session")
def bench(folder: Path) -> Bench:
    return Bench(folder, STEPS)


@pytest.fixture(scope="session")
def tiny() -> Path:
    import foveal

    return Path(os.path.dirname(foveal.__file__)) / "builtin" / "tiny"
