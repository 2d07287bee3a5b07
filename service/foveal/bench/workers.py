"""`foveal bench workers`: how much more N worker processes encode than one, packs made by the real engine.

Prepared images of the mixture go straight to the queue, so that neither HTTP nor decoding is measured: batcher,
packing, worker choice, sockets, shared memory, and the worker processes.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Iterator, Sequence
from itertools import cycle, islice
from pathlib import Path

import numpy as np
from prometheus_client import CollectorRegistry

from foveal.bench.figures import write_figures
from foveal.bench.mixture import plans as mixture
from foveal.bench.shape import QWEN3_VL_8B
from foveal.engine.assembly import Service, assemble
from foveal.engine.demand import Demand
from foveal.engine.items import Item
from foveal.engine.ladder import MAX_BUDGET_TOKENS
from foveal.families.catalogue import local_spec
from foveal.metrics import Metrics
from foveal.settings import Settings, process_environment
from foveal.types import Output, PixelPlan

SECONDS = 8.0
IN_FLIGHT_PER_WORKER = 24


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of the command."""
    parser.add_argument("--devices", nargs="+", default=["cuda:0", "cuda:0,1"], help="one run for each device list")
    parser.add_argument("--model", default=str(QWEN3_VL_8B), help="default: Qwen3-VL-8B's shape")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="length of each run (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="write the figures here")


def run(args: argparse.Namespace) -> int:
    """Measure and print; the exit code."""
    found: dict[str, dict[str, float]] = {}
    for devices in args.devices:
        found[devices] = asyncio.run(_measure(devices, args.model, args.seconds))
        print(f"{devices:12}" + "".join(f"  {name} {value:.1f}" for name, value in found[devices].items()), flush=True)
    first = found[args.devices[0]]["tokens/s"]
    for devices in args.devices[1:]:
        print(f"{devices} encodes {found[devices]['tokens/s'] / first:.2f} times as many tokens as {args.devices[0]}")
    if args.json:
        write_figures(args.json, found)
    return 0


async def _measure(devices: str, model: str, seconds: float) -> dict[str, float]:
    settings = Settings(model=model, device=devices, load_format="dummy", cache_bytes=0, prep_workers=1)
    plans = [plan for plan in islice(mixture(seed=1), 512) if plan.num_tokens <= MAX_BUDGET_TOKENS]
    return await bare_rate(settings, plans, seconds)


async def bare_rate(
    settings: Settings, plans: Sequence[PixelPlan], seconds: float, in_flight: int = IN_FLIGHT_PER_WORKER
) -> dict[str, float]:
    """Images and tokens a second through queue and worker processes alone: neither HTTP nor decoding."""
    spec = local_spec(settings.model, settings.load_format == "dummy")
    service = assemble(settings, spec, Metrics(CollectorRegistry()), process_environment())
    children = asyncio.create_task(service.run())
    try:
        await _until_captured(service)
        begun = time.monotonic()
        width = in_flight * len(service.pool.workers)
        # of all callers together, so that who has small images does not send more of them
        turns = cycle(plans)
        counts = await asyncio.gather(*(_caller(service, turns, begun + seconds) for _ in range(width)))
        spent = time.monotonic() - begun
    finally:
        await service.stop()
        children.cancel()
    images, tokens = (sum(column) for column in zip(*counts, strict=True))
    return {"images/s": images / spent, "tokens/s": tokens / spent}


async def _until_captured(service: Service) -> None:
    while not all(w.ready and w.stage == "ready" and w.ladder.is_measured for w in service.pool.workers):  # noqa: ASYNC110
        await asyncio.sleep(0.1)


async def _caller(service: Service, turns: Iterator[PixelPlan], end: float) -> tuple[int, int]:
    """One caller, who sends one image after the other; how many, and their tokens."""
    memory, images, tokens = service.engine.memory, 0, 0
    output = Output(service.engine.spec.default_output, service.engine.spec.dtype)
    while time.monotonic() < end:
        plan = next(turns)
        rows = await memory.rows.block(plan.num_patches * plan.row_bytes)
        rows.view[: 1 << 10] = np.uint8(images % 251)
        embedding = await memory.embeddings.block(service.engine.spec.embedding_bytes(output, plan.num_tokens))
        await service.pool.encode(Item(plan.grid, plan.num_tokens, rows, embedding, output), Demand())
        del rows, embedding  # held while waiting for the next ones, they could fill the arenas for ever
        images, tokens = images + 1, tokens + plan.num_tokens
    return images, tokens
