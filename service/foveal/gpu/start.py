"""From `Configure` to a runner that answers: device, weights, buffers, warm-up."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from foveal.errors import ConfigurationError
from foveal.families.catalogue import spec_of
from foveal.families.checkpoint import open_checkpoint
from foveal.families.spec import ModelSpec
from foveal.gpu.buffers import Buffers
from foveal.gpu.copies import Copier
from foveal.gpu.copy_out import TORCH_DTYPES
from foveal.gpu.dummy import dummy_weights
from foveal.gpu.executable import DirectCall
from foveal.gpu.graphs import GraphSet
from foveal.gpu.ladder import GraphLadder
from foveal.gpu.layout import Step
from foveal.gpu.nearness import stay_near
from foveal.gpu.pinning import pin
from foveal.gpu.runner import PackRunner, Runner
from foveal.gpu.stream_runner import StreamRunner
from foveal.gpu.towers.protocol import Tower
from foveal.gpu.towers.vision import VisionTower
from foveal.gpu.warm_up import measure, typical_layout
from foveal.gpu.weights import read_weights
from foveal.ipc.arena import MappedArena
from foveal.ipc.messages import Configure, WorkerReady
from foveal.types import DType, TokenBudget

Say = Callable[[str], None]


@dataclass(frozen=True)
class Parts:
    """What a runner is made of, on either kind of device."""

    configure: Configure
    tower: Tower
    buffers: Buffers
    steps: Sequence[Step]
    arenas: Mapping[str, MappedArena]
    dtype: torch.dtype


@dataclass(frozen=True)
class Made:
    """A runner that answers."""

    runner: PackRunner
    ladder: GraphLadder | None
    """With graphs that are still to be captured; None on the CPU."""
    budgets: tuple[TokenBudget, ...]
    """As they are now."""
    buffers_bytes: int
    """Of all static buffers."""


def start(
    configure: Configure, arenas: Mapping[str, MappedArena], say: Say
) -> tuple[PackRunner, GraphLadder | None, WorkerReady]:
    """Load and measure, saying what is done; raises ConfigurationError where another start would not help."""
    began = time.perf_counter()
    if configure.threads:
        torch.set_num_threads(configure.threads)
    device = take_device(configure.device)
    say("loading weights")
    spec = spec_of("", open_checkpoint(Path(configure.folder), configure.load_format == "dummy"))
    name = compute_dtype(configure, spec)
    dtype = TORCH_DTYPES[name]
    tower = build_tower(spec, device, dtype)
    steps = steps_of(configure)
    parts = Parts(configure, tower, Buffers(steps[-1], tower.geometry, device, dtype), steps, arenas, dtype)
    made = _on_gpu(parts, say) if device.type == "cuda" else _on_cpu(parts, say)
    if not bool(parts.buffers.answers.row_absmax.isfinite().all()):  # of the warm-up
        raise ConfigurationError(
            f"the weights in {configure.folder} give values that are not finite in {name}: try --dtype float32, or "
            "look for damage in its files"
        )
    ready = WorkerReady(
        device=device_name(device),
        dtype=name,
        attention=tower.ops.name,
        budgets=made.budgets,
        weights_bytes=tower.weights_bytes,
        buffers_bytes=made.buffers_bytes,
        load_seconds=time.perf_counter() - began,
        torch_version=str(torch.__version__),
        is_final=made.ladder is None or not made.ladder.is_pending,
    )
    return made.runner, made.ladder, ready


def steps_of(configure: Configure) -> list[Step]:
    """The ladder's capacities, ascending: no more images than can come in so many tokens, and always one."""
    return [
        Step(tokens, max(1, min(tokens // configure.item_tokens, configure.max_items)))
        for tokens in configure.token_budgets
    ]


def _on_cpu(parts: Parts, say: Say) -> Made:
    tower, buffers, arenas = parts.tower, parts.buffers, parts.arenas
    executable = DirectCall(tower, buffers, "static")
    say("warming up")
    budgets = measure(executable, parts.steps, buffers.device)
    ladder = {step.tokens: step for step in parts.steps}
    runner = Runner(tower, executable, ladder, arenas["rows"], arenas["embeddings"], buffers.device, parts.dtype)
    return Made(runner, None, budgets, buffers.nbytes)


def _on_gpu(parts: Parts, say: Say) -> Made:
    configure, tower, buffers = parts.configure, parts.tower, parts.buffers
    say("pinning shared memory")
    pinned = {name: pin(arena) for name, arena in parts.arenas.items()}
    graphs = GraphSet(tower, buffers, torch.cuda.Stream(buffers.device))
    say("warming up")
    needed = _warm(graphs, parts.steps[-1]) + buffers.nbytes
    reserve = configure.reserve_bytes + eager_bytes(needed, parts.steps[-1].tokens, configure.max_image_tokens)
    capture = configure.capture if tower.ops.is_capturable else "off"
    ladder = GraphLadder(graphs, parts.steps, reserve, capture == "all")
    runner = StreamRunner(graphs, ladder, pinned, Copier(), capture == "lazy")
    return Made(runner, ladder, ladder.told().budgets, buffers.nbytes + runner.staging.nbytes)


def eager_bytes(needed: int, budget: int, image: int) -> int:
    """An estimate of the memory that the largest image needs beyond what the largest budget, both in tokens, needed."""
    return int(needed * max(0, image - budget) / budget)


def _warm(graphs: GraphSet, step: Step) -> int:
    """Run the largest step once, so that nothing compiles under the first caller; the memory that it needed."""
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    with torch.cuda.stream(graphs.stream):
        graphs.buffers.place(typical_layout(step, graphs.buffers.geometry))
        graphs.run(step)
        graphs.stream.synchronize()
    return torch.cuda.max_memory_allocated() - before


def take_device(kind: str) -> torch.device:
    """The one device of this process; which GPU that is was decided before it started."""
    if kind == "cuda" and not torch.cuda.is_available():
        raise ConfigurationError(
            "torch sees no CUDA device: check the driver, CUDA_VISIBLE_DEVICES and that torch is a CUDA build, "
            "or use --device cpu"
        )
    if kind == "cpu":
        return torch.device(kind)
    device = torch.device(kind, 0)
    stay_near(device)
    return device


def device_name(device: torch.device) -> str:
    """For /info."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def compute_dtype(configure: Configure, spec: ModelSpec) -> DType:
    """What is computed in: asked for, or the checkpoint's own on a GPU and float32 on a CPU."""
    return spec.compute_dtype(configure.dtype, configure.device)


@torch.inference_mode()
def build_tower(spec: ModelSpec, device: torch.device, dtype: torch.dtype) -> Tower:
    """The model's tower with its weights on the device; raises ConfigurationError when they do not fit it."""
    tower = VisionTower(spec, device, dtype)
    wanted = tower.wanted()
    tower.load(dummy_weights(wanted) if spec.dummy_weights else read_weights(spec.folder, wanted, spec.tower.names))
    return tower
