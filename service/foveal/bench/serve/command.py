"""`foveal bench serve`: what a running server holds, by requests that arrive whether or not it keeps up.

Arrivals are Poisson or constant at each of --rates; latency counts from the moment a request was due. Every picture is
sent as bytes never seen before, except for the share of --duplicates. Exit code 1 says that a limit was broken.
"""

from __future__ import annotations

import argparse
import platform
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from foveal.bench.serve import pictures
from foveal.bench.serve.flags import add_arguments, limits_of, num_processes_of, target_of
from foveal.bench.serve.fleet import HEAD_START_SECONDS, Fleet
from foveal.bench.serve.generator import Shares
from foveal.bench.serve.report import draw, table, write_json
from foveal.bench.serve.results import StepResult, Window, summarize
from foveal.bench.serve.schedule import Recipe, Schedule, Trace, carry, read_trace
from foveal.bench.serve.schedule import draw as draw_schedule
from foveal.bench.serve.server_side import ServerSide, compared
from foveal.bench.serve.verdict import held, warnings
from foveal.errors import ConfigurationError

__all__ = ["add_arguments", "run"]

KEPT, BROKEN = 0, 1


def run(args: argparse.Namespace) -> int:
    """Send, print, write; the exit code."""
    target = target_of(args)
    trace = read_trace(args.trace, args.speed) if args.trace else None
    server = ServerSide(args.url, args.api_key)
    try:
        server.wait_ready(args.wait_ready_seconds)
        info = server.info()
        made = _pictures(args, trace)
        weight = sum(map(len, made)) / 1000
        print(f"{len(made)} pictures of {weight / len(made):.0f} kB on average; {num_processes_of(args)} processes")
        with Fleet(Shares(target, made, args.max_connections), num_processes_of(args)) as fleet:
            steps = [_step(args, server, fleet, plan, window) for plan, window in _plans(args, trace, len(made))]
    finally:
        server.close()
    uncopied = pictures.num_uncopied(made)
    limits = limits_of(args)
    broken = [sentence for step in steps for sentence in limits.broken(step)]
    cautions = list(warnings(steps, uncopied))
    holds = held(limits, steps)
    said = {"held": holds, "broken": broken, "warnings": cautions, "machine": platform.platform()}
    # Before the table, which may be for nobody: `| head`.
    if args.json:
        given = {name: str(value) if isinstance(value, Path) else value for name, value in vars(args).items()}
        write_json(args.json, given | {"api_key": bool(args.api_key)}, info, steps, said)
    if args.plot:
        draw(args.plot, steps, f"{info.get('model', args.url)}, {args.payload}, {args.process} arrivals")
    print(f"\n{table(steps)}\n\n{holds}")
    for sentence in (*(f"warning: {text}" for text in cautions), *(f"broken: {text}" for text in broken)):
        print(sentence)
    return BROKEN if broken else KEPT


def _pictures(args: argparse.Namespace, trace: Trace | None) -> list[bytes]:
    if trace is not None:
        return pictures.of_sizes(dict.fromkeys(trace.sizes), args.seed)
    if args.folder is not None:
        return pictures.of_folder(args.folder)
    if args.size:
        wanted = [pictures.parse_size(text) for text in args.size]
        return pictures.of_sizes(wanted, args.seed)
    return pictures.of_mixture(args.pictures, args.seed)


def _plans(args: argparse.Namespace, trace: Trace | None, num_pictures: int) -> Iterator[tuple[Schedule, Window]]:
    recipe = Recipe(args.process, num_pictures, args.images_per_request, args.duplicates, args.seed)
    # another run against the same server must not find its pictures in the cache
    first_copy = time.time_ns()
    accepted = frozenset(args.accept_codes)
    if trace is not None:
        window = Window(f"{trace.rate:.3g}/s", 0.0, max(float(trace.due[-1]), 1e-3), 1, accepted)
        yield _of_trace(replace(recipe, images_per_request=1), trace, first_copy), window
        return
    for step, rate in enumerate(args.rates):
        seconds = args.warmup_seconds + args.seconds
        schedule = draw_schedule(recipe, rate, seconds, step, first_copy)
        first_copy += schedule.copies.size
        yield schedule, Window(f"{rate:g}/s", args.warmup_seconds, args.seconds, args.images_per_request, accepted)


def _of_trace(recipe: Recipe, trace: Trace, first_copy: int) -> Schedule:
    places = {size: i for i, size in enumerate(dict.fromkeys(trace.sizes))}
    shown = np.array([[places[size]] for size in trace.sizes], np.int32)
    return carry(recipe, trace.due, shown, first_copy)


def _step(args: argparse.Namespace, server: ServerSide, fleet: Fleet, schedule: Schedule, window: Window) -> StepResult:
    print(f"{window.label}: {len(schedule.due)} requests in {schedule.due[-1]:.0f} s", flush=True)
    before, began = server.counters(), time.monotonic()
    samples = fleet.fire(schedule)
    spent = time.monotonic() - began - HEAD_START_SECONDS
    result = summarize(samples, window, compared(before, server.counters(), spent))
    if not result.num_requests:
        raise ConfigurationError(f"{window.label}: no request fell into --seconds {args.seconds:g}; run for longer")
    return result
