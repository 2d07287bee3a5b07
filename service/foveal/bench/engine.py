"""`foveal bench engine`: transformers, our forward, our graphs and the floor, side by side in one run on a GPU.

Needs a CUDA device. The tower has the shape of Qwen3-VL-8B's, or that of --model, with random weights.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from foveal.bench.feeder import Feeder
from foveal.bench.figures import plot_path, save_plot, write_figures
from foveal.bench.floor import floor_milliseconds
from foveal.bench.reference import ReferenceTower
from foveal.bench.shape import QWEN3_VL_8B
from foveal.engine.ladder import inferred_budgets
from foveal.gpu.executable import eager_call
from foveal.gpu.layout import Step, lay_out, num_tokens

CASES = ((1, 16, 16), (1, 28, 28), (1, 32, 32), (2, 28, 28), (5, 28, 28), (1, 64, 64), (10, 28, 28), (2, 64, 64))
"""Images, height and width in patches."""
RUNS = 20


@dataclass(frozen=True)
class Row:
    """One case; all times in milliseconds."""

    case: str
    budget: int
    transformers_eager: float | None
    our_eager: float
    replay: float
    pack_to_result: float
    host: float
    floor: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of the command."""
    parser.add_argument(
        "--model", type=Path, help="checkpoint folder whose config.json to use; default: Qwen3-VL-8B's shape"
    )
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--plot", type=plot_path, help="write a picture here (needs matplotlib)")
    parser.add_argument("--without-transformers", action="store_true", help="leave the reference out")


def run(args: argparse.Namespace) -> int:
    """Measure and print; the exit code."""
    if not torch.cuda.is_available():
        print("foveal bench engine needs a CUDA device")
        return 2
    folder = args.model or QWEN3_VL_8B
    steps = [Step(tokens, min(tokens, 64)) for tokens in inferred_budgets(8192)]
    torch.cuda.init()
    torch.zeros(1, device="cuda")  # the context itself is not ours to count
    free, _ = torch.cuda.mem_get_info()
    feeder = Feeder(folder, steps, arena_bytes=1 << 30)
    weights = feeder.tower.weights_bytes
    began = time.perf_counter()
    feeder.capture_all()
    seconds = time.perf_counter() - began
    used = free - torch.cuda.mem_get_info()[0]
    told = feeder.ladder.told()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {feeder.tower.ops.name}, bfloat16")
    print(
        f"{len(told.budgets)} graphs in {seconds:.1f} s; device memory beside context and weights "
        f"{(used - weights) / 2**30:.2f} GiB: static {feeder.buffers.nbytes / 2**30:.2f}, staging "
        f"{feeder.runner.staging.nbytes / 2**30:.2f}, graphs with their pool {told.graph_bytes / 2**30:.2f}; attention "
        f"{told.ms_per_patch2 * 1e6:.4f} ms per 1000² patches\n"
    )
    reference = None if args.without_transformers else ReferenceTower(folder)
    rows = [_row(feeder, reference, *case) for case in CASES]
    if args.json:
        ladder = [{"tokens": b.tokens, "items": b.items, "milliseconds": b.milliseconds} for b in told.budgets]
        facts = {"capture_seconds": seconds, "device_bytes": used, "weights_bytes": weights, "budgets": ladder}
        facts |= {"ms_per_patch2": told.ms_per_patch2, "typical_patches": told.typical_patches}
        write_figures(args.json, {**facts, "cases": [asdict(row) for row in rows]})
    if args.plot:
        _plot(args.plot, rows)
    _print(rows)
    return 0


def _row(feeder: Feeder, reference: ReferenceTower | None, count: int, height: int, width: int) -> Row:
    tokens = count * num_tokens(height, width, feeder.tower.geometry)
    budget = min(b for b in feeder.ladder.steps if b >= tokens)
    grids = [(height, width)] * count
    rows = [feeder.rows(height * width, i) for i in range(count)]
    items = [feeder.item(block.span, height, width) for block in rows]
    pack = [item for item, _ in items]
    host: list[float] = []

    def whole() -> None:
        running = feeder.submit(pack, budget)
        running.finish()
        host.append(running.host_seconds * 1000)

    whole_ms = median_wall(whole)
    replay_ms = feeder.graphs.milliseconds(feeder.ladder.steps[budget])
    return Row(
        case=f"{count} x {height * width}",
        budget=budget,
        transformers_eager=reference.milliseconds(grids) if reference else None,
        our_eager=_eager(feeder, grids),
        replay=replay_ms,
        pack_to_result=whole_ms,
        host=statistics.median(host),
        floor=floor_milliseconds(feeder.tower, grids),
    )


def _eager(feeder: Feeder, grids: list[tuple[int, int]]) -> float:
    layout = lay_out(tuple(grids), feeder.tower.geometry)
    call, size = eager_call(feeder.tower, layout, feeder.device, torch.bfloat16)
    call.buffers.place(layout)

    def once() -> None:
        call.run(size)
        torch.cuda.synchronize()

    return median_wall(once)


def median_wall(call: Callable[[], None]) -> float:
    """Milliseconds of the wall clock, the median of some runs after two that do not count."""
    taken: list[float] = []
    for i in range(RUNS + 2):
        began = time.perf_counter()
        call()
        if i >= 2:
            taken.append((time.perf_counter() - began) * 1000)
    return statistics.median(taken)


def _print(rows: list[Row]) -> None:
    heads = ("budget", "transformers", "our eager", "replay", "pack→result", "host", "floor")
    print(f"{'images x patches':18}" + "".join(f"{head:>13}" for head in heads))
    for row in rows:
        reference = f"{row.transformers_eager:.2f}" if row.transformers_eager else "-"
        times = (row.our_eager, row.replay, row.pack_to_result, row.host, row.floor)
        print(f"{row.case:18}{row.budget:13}{reference:>13}" + "".join(f"{ms:13.3f}" for ms in times))
    print("(milliseconds; pack→result: pack taken to embeddings in shared memory; host: pack taken to run issued)")


def _plot(path: Path, rows: list[Row]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(10, 5), layout="constrained")
    series = {"transformers": "transformers_eager", "our eager": "our_eager", "pack→result": "pack_to_result"}
    series |= {"replay": "replay", "floor": "floor"}
    for i, (label, name) in enumerate(series.items()):
        heights = [getattr(row, name) or 0.0 for row in rows]
        axis.bar([x + (i - 2) * 0.16 for x in range(len(rows))], heights, 0.16, label=label)
    axis.set_xticks(range(len(rows)), [row.case for row in rows])
    axis.set_yscale("log")
    axis.set_ylabel("milliseconds")
    axis.legend()
    save_plot(path, figure, dpi=120)
