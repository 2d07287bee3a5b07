"""From `Configure` to a runner that answers: device, weights, buffers, warm-up."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
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
from foveal.gpu.graphs import GraphSet
from foveal.gpu.ladder import GraphLadder
from foveal.gpu.layout import Step
from foveal.gpu.pinning import pin
from foveal.gpu.runner import PackRunner, Runner
from foveal.gpu.stream_runner import StreamRunner
from foveal.gpu.towers.protocol import Tower
from foveal.gpu.towers.registry import TOWERS
from foveal.gpu.warm_up import measure, typical_layout
from foveal.gpu.weights import read_weights
from foveal.ipc.arena import MappedArena
from foveal.ipc.messages import Configure, WorkerReady
from foveal.types import DType, TokenBudget

Say = Callable[[str], None]


def start(
    configure: Configure, arenas: Mapping[str, MappedArena], say: Say
) -> tuple[PackRunner, GraphLadder | None, WorkerReady]:
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
    steps = [Step(tokens, min(tokens, configure.max_items)) for tokens in configure.token_budgets]
    buffers = Buffers(steps[-1], tower.geometry, device, TORCH_DTYPES[name])
    make = _on_gpu if device.type == "cuda" else _on_cpu
    runner, ladder, budgets, buffers_bytes = make(configure, tower, buffers, steps, arenas, say)
    return (
        runner,
        ladder,
        WorkerReady(
            device=device_name(device),
            dtype=name,
            attention=tower.ops.name,
            budgets=budgets,
            weights_bytes=tower.weights_bytes,
            buffers_bytes=buffers_bytes,
            load_seconds=time.perf_counter() - began,
            torch_version=str(torch.__version__),
        ),
    )


Made = tuple[PackRunner, GraphLadder | None, tuple[TokenBudget, ...], int]
"""Runner, ladder that is still captured, budgets as they are now, bytes of static buffers."""


def _on_cpu(
    configure: Configure,
    tower: Tower,
    buffers: Buffers,
    steps: Sequence[Step],
    arenas: Mapping[str, MappedArena],
    say: Say,
) -> Made:
    executable = DirectCall(tower, buffers, "static")
    say("warming up")
    budgets = measure(executable, steps, buffers.device)
    ladder = {step.tokens: step for step in steps}
    dtype = buffers.whole_output.dtype
    runner = Runner(tower, executable, ladder, arenas["rows"], arenas["embeddings"], buffers.device, dtype)
    return runner, None, budgets, buffers.nbytes


def _on_gpu(
    configure: Configure,
    tower: Tower,
    buffers: Buffers,
    steps: Sequence[Step],
    arenas: Mapping[str, MappedArena],
    say: Say,
) -> Made:
    say("pinning shared memory")
    pinned = {name: pin(arena) for name, arena in arenas.items()}
    stream = torch.cuda.Stream(buffers.device)
    graphs = GraphSet(tower, buffers, stream)
    say("warming up")
    dtype = buffers.whole_output.dtype
    peak = _warm(graphs, steps[-1])
    beyond = max(0, configure.max_image_tokens - steps[-1].tokens) / steps[-1].tokens
    reserve = configure.reserve_bytes + int((peak + buffers.nbytes) * beyond)
    capture = configure.capture if tower.ops.is_capturable else "off"
    ladder = GraphLadder(graphs, steps, reserve, capture == "all")
    runner = StreamRunner(tower, graphs, ladder, pinned, buffers.device, dtype, capture == "lazy")
    return runner, ladder, ladder.told().budgets, buffers.nbytes + runner.staging.nbytes


def _warm(graphs: GraphSet, step: Step) -> int:
    """Run the largest step once, so that nothing compiles under the first caller; the memory that it needed."""
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    with torch.inference_mode(), torch.cuda.stream(graphs.stream):
        graphs.buffers.place(typical_layout(step, graphs.buffers.geometry.merge_size))
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
