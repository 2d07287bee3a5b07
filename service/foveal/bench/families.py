"""`foveal bench families`: images in a second and milliseconds of a lone image, each family beside transformers.

Needs a CUDA device. Published shapes with random weights in bfloat16; images of each tower's native size, or of a
usual one where it has none. Ours goes from patch rows in shared memory to answers there, two packs under way, as a
worker does; transformers runs eagerly on inputs that are on the GPU already, at the best of some batch sizes.
"""

from __future__ import annotations

import argparse
import time
from collections import deque
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from foveal.bench.feeder import Feeder
from foveal.bench.figures import write_figures
from foveal.bench.reference import ReferenceTower
from foveal.bench.shape import SHAPES
from foveal.families.catalogue import spec_of
from foveal.families.checkpoint import open_checkpoint
from foveal.families.spec import ModelSpec
from foveal.gpu.layout import Step
from foveal.ipc.messages import PackItem
from foveal.types import Output

BATCHES = (1, 4, 8, 16, 32, 64)
"""Images of a batch for transformers, and of a pack for us."""
MAX_TOKENS = 5120
USUAL_GRID = (32, 32)
NATIVE_GRIDS = {"siglip2_naflex": (16, 16)}
SECONDS = 1.5
UNDER_WAY = 2


@dataclass(frozen=True)
class Row:
    """One family; milliseconds are of one image alone."""

    shape: str
    tokens_per_image: int
    images_per_second: float
    images_of_a_pack: int
    transformers_images_per_second: float
    transformers_batch: int
    milliseconds: float
    transformers_milliseconds: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of the command."""
    parser.add_argument("--shapes", nargs="+", help="only these; default: all")
    parser.add_argument("--json", type=Path, help="write the figures here")


def run(args: argparse.Namespace) -> int:
    """Measure and print; the exit code."""
    if not torch.cuda.is_available():
        print("foveal bench families needs a CUDA device")
        return 2
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, bfloat16")
    heads = ("tokens", "images/s", "pack", "transformers", "batch", "lone ms", "transformers")
    print(f"{'shape':24}" + "".join(f"{head:>13}" for head in heads), flush=True)
    rows = [_row(SHAPES / name) for name in args.shapes or sorted(p.name for p in SHAPES.iterdir())]
    if args.json:
        write_figures(args.json, [asdict(row) for row in rows])
    return 0


def _row(folder: Path) -> Row:
    spec = spec_of("bench", open_checkpoint(folder, dummy_weights=True))
    grid = spec.tower.fixed_grid or NATIVE_GRIDS.get(spec.family, USUAL_GRID)
    tokens = spec.tower.prefix_rows + grid[0] * grid[1] // spec.tower.merge_size**2
    counts = [n for n in BATCHES if n * tokens <= MAX_TOKENS]
    feeder = Feeder(folder, [Step(n * tokens, n) for n in counts], arena_bytes=1 << 30)
    feeder.capture_all()
    ours = {n: _ours(feeder, spec, grid, n * tokens, n) for n in counts}
    del feeder
    reference = ReferenceTower(folder)
    theirs = {n: 1000 * n / reference.milliseconds([grid] * n) for n in BATCHES}
    best, best_of_theirs = max(ours, key=lambda n: ours[n][0]), max(theirs, key=theirs.__getitem__)
    row = Row(
        shape=folder.name,
        tokens_per_image=tokens,
        images_per_second=ours[best][0],
        images_of_a_pack=best,
        transformers_images_per_second=theirs[best_of_theirs],
        transformers_batch=best_of_theirs,
        milliseconds=ours[1][1],
        transformers_milliseconds=1000 / theirs[1],
    )
    _print(row)
    return row


def _ours(feeder: Feeder, spec: ModelSpec, grid: tuple[int, int], budget: int, count: int) -> tuple[float, float]:
    """Images in a second with packs under way, and milliseconds of one pack from submit to answer."""
    output = Output(spec.default_output, "bfloat16")
    # blocks of an arena live as long as they are held
    rows = [feeder.rows(grid[0] * grid[1], i) for i in range(count)]
    # a place of its own for each pack under way
    made = [[feeder.item(block.span, *grid, output) for block in rows] for _ in range(UNDER_WAY)]
    packs = [[item for item, _ in pack] for pack in made]
    return _throughput(feeder, packs, budget), _alone(feeder, packs[0], budget)


def _throughput(feeder: Feeder, packs: list[list[PackItem]], budget: int) -> float:
    running = deque(feeder.submit(pack, budget) for pack in packs)
    began, images, turn = time.perf_counter(), 0, 0
    while time.perf_counter() - began < SECONDS:
        running.popleft().finish()
        images += len(packs[0])
        running.append(feeder.submit(packs[turn % len(packs)], budget))
        turn += 1
    seconds = time.perf_counter() - began
    for pack in running:
        pack.finish()
    return images / seconds


def _alone(feeder: Feeder, pack: list[PackItem], budget: int) -> float:
    taken = []
    for _ in range(20):
        began = time.perf_counter()
        feeder.submit(pack, budget).finish()
        taken.append(time.perf_counter() - began)
    return 1000 * sorted(taken)[len(taken) // 2]


def _print(row: Row) -> None:
    print(
        f"{row.shape:24}{row.tokens_per_image:13}{row.images_per_second:13.0f}{row.images_of_a_pack:13}"
        f"{row.transformers_images_per_second:13.0f}{row.transformers_batch:13}{row.milliseconds:13.2f}"
        f"{row.transformers_milliseconds:13.2f}",
        flush=True,
    )
