"""From `Configure` to a runner that answers: device, weights, buffers, warm-up."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from foveal.errors import ConfigurationError
from foveal.families.catalogue import spec_of
from foveal.families.checkpoint import Checkpoint, open_checkpoint
from foveal.families.spec import ModelSpec
from foveal.gpu.buffers import Buffers
from foveal.gpu.copy_out import TORCH_DTYPES
from foveal.gpu.dummy import dummy_weights
from foveal.gpu.executable import DirectCall
from foveal.gpu.layout import Step
from foveal.gpu.runner import Runner
from foveal.gpu.towers.protocol import Tower
from foveal.gpu.towers.registry import TOWERS
from foveal.gpu.warm_up import measure
from foveal.gpu.weights import read_weights
from foveal.ipc.arena import MappedArena
from foveal.ipc.messages import Configure, WorkerReady
from foveal.types import DType

Say = Callable[[str], None]


def start(configure: Configure, arenas: Mapping[str, MappedArena], say: Say) -> tuple[Runner, WorkerReady]:
    """Load and measure, saying what is done; raises ConfigurationError where another start would not help."""
    began = time.perf_counter()
    if configure.threads:
        torch.set_num_threads(configure.threads)
    device = take_device(configure.device)
    say("loading weights")
    checkpoint = open_checkpoint(Path(configure.folder), configure.load_format == "dummy")
    spec = spec_of("", checkpoint)
    name = compute_dtype(configure, spec)
    with torch.inference_mode():
        tower = build_tower(checkpoint, spec, device, TORCH_DTYPES[name])
    ladder = [Step(tokens, min(tokens, configure.max_items)) for tokens in configure.token_budgets]
    buffers = Buffers(ladder[-1], tower.geometry, device, TORCH_DTYPES[name])
    executable = DirectCall(tower, buffers, "static")
    say("warming up")
    budgets = measure(executable, ladder, device)
    steps = {step.tokens: step for step in ladder}
    runner = Runner(tower, executable, steps, arenas["rows"], arenas["embeddings"], device, TORCH_DTYPES[name])
    return runner, WorkerReady(
        device=device_name(device),
        dtype=name,
        attention=tower.attention.name,
        budgets=budgets,
        weights_bytes=tower.weights_bytes,
        buffers_bytes=buffers.nbytes,
        load_seconds=time.perf_counter() - began,
        torch_version=str(torch.__version__),
    )


def take_device(kind: str) -> torch.device:
    """The one device of this process; which GPU that is was decided before it started."""
    if kind == "cuda" and not torch.cuda.is_available():
        raise ConfigurationError(
            "torch sees no CUDA device: check the driver, CUDA_VISIBLE_DEVICES and that torch is a CUDA build, "
            "or use --device cpu"
        )
    return torch.device(kind, 0) if kind == "cuda" else torch.device(kind)


def device_name(device: torch.device) -> str:
    """For /info."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def compute_dtype(configure: Configure, spec: ModelSpec) -> DType:
    """What is computed in: asked for, or the checkpoint's own on a GPU and float32 on a CPU."""
    if configure.dtype != "auto":
        return configure.dtype
    return "float32" if configure.device == "cpu" else spec.dtype


def build_tower(checkpoint: Checkpoint, spec: ModelSpec, device: torch.device, dtype: torch.dtype) -> Tower:
    """The family's tower with its weights on the device."""
    tower = TOWERS[spec.family](checkpoint, spec, device, dtype)
    wanted = tower.wanted()
    tower.load(dummy_weights(wanted) if spec.dummy_weights else read_weights(checkpoint.folder, wanted))
    return tower
