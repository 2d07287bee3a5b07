"""`foveal bench curves`: latency over rate of the whole service over HTTP, beside a plain server, in one run.

For each case: a server is started, the highest rate with p99 within 3 times the median of lone requests is searched
with open-loop load, and what was busiest there is told; then the engine alone, then a plain server of FastAPI and
transformers under the same load. Weights are random, no picture comes twice, the cache is off.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import uvloop

from foveal.bench.curves.cases import CASES, Case, own_case, plans_of
from foveal.bench.curves.device import peak_images
from foveal.bench.curves.report import tables
from foveal.bench.curves.servers import plain_command, running, service_command
from foveal.bench.curves.sweep import Pace, Sweep
from foveal.bench.figures import write_figures
from foveal.bench.serve.flags import positive
from foveal.bench.workers import bare_rate
from foveal.errors import ConfigurationError
from foveal.families.catalogue import local_spec
from foveal.settings import Settings
from foveal.types import PixelPlan

ENGINE_SECONDS = 4.0
IN_FLIGHT = 48
"""Images that always wait when the engine is measured alone: two packs of one size, and some to choose from."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of the command."""
    shown, cores = "(default: %(default)s)", len(os.sched_getaffinity(0))
    parser.add_argument("--cases", nargs="+", choices=tuple(CASES), default=list(CASES), help="default: all")
    parser.add_argument("--model", help="another model instead of the cases: checkpoint folder or builtin:NAME")
    parser.add_argument("--size", action="append", help="with --model: WIDTHxHEIGHT; default: a chat service's mixture")
    parser.add_argument("--device", default="cuda", help=f"of both servers {shown}")
    parser.add_argument("--seconds-per-step", type=positive, default=5.0, help=f"length of one rate {shown}")
    parser.add_argument("--service-seconds", type=positive, default=75.0, help=f"of the service's search {shown}")
    parser.add_argument("--plain-seconds", type=positive, default=45.0, help=f"of the plain server's {shown}")
    parser.add_argument("--without-plain", action="store_true", help="leave the plain server out")
    parser.add_argument("--without-engine", action="store_true", help="leave the engine alone out")
    parser.add_argument("--processes", type=int, default=max(1, cores // 4), help=f"that send {shown}")
    parser.add_argument("--prep-workers", type=int, default=max(1, cores // 2), help=f"of the service {shown}")
    parser.add_argument("--serve", action="append", default=[], metavar="NAME=VALUE", help="a setting; repeatable")
    parser.add_argument("--seed", type=int, default=0, help=f"of arrivals and pictures {shown}")
    parser.add_argument("--logs", type=Path, default=Path("."), help="folder for the servers' logs")
    parser.add_argument(
        "--json",
        type=Path,
        help="write all figures here; until then, FILE.partial; see foveal bench report",
    )


def run(args: argparse.Namespace) -> int:
    """Measure, print, write; the exit code."""
    cases = [own_case(args.model, args.size)] if args.model else [CASES[name] for name in args.cases]
    settings = settings_of(args)
    args.logs.mkdir(parents=True, exist_ok=True)
    told: list[dict[str, Any]] = []
    given = {name: str(value) if isinstance(value, Path) else value for name, value in vars(args).items()}
    for case in cases:
        told.append(_case(case, args, settings))
        if args.json:
            about = {"given": given, "settings": settings, "machine": platform.platform(), "cores": os.cpu_count()}
            partial = args.json.with_name(f"{args.json.name}.partial")
            is_last = len(told) == len(cases)
            write_figures(args.json if is_last else partial, about | {"cases": told})
            if is_last:
                partial.unlink(missing_ok=True)
    print(f"\n{tables(told)}")
    return 0


def settings_of(args: argparse.Namespace) -> dict[str, str]:
    """Settings of the service beside its model; raises ConfigurationError."""
    settings = {"device": args.device, "prep_workers": str(args.prep_workers)}
    for text in args.serve:
        name, has_value, value = text.partition("=")
        if not has_value:
            raise ConfigurationError(f"--serve {text}: say NAME=VALUE")
        settings[name.replace("-", "_")] = value
    return settings


def _case(case: Case, args: argparse.Namespace, settings: Mapping[str, str]) -> dict[str, Any]:
    made = case.pictures(args.seed)
    plans = plans_of(made, local_spec(case.model, dummy_weights=True))
    tokens = statistics.fmean(plan.num_tokens for plan in plans)
    print(f"{case.name}: {sum(map(len, made)) / len(made) / 1000:.0f} kB and {tokens:.0f} tokens a picture", flush=True)
    flags = [f"--model={case.model}", *(f"--{name.replace('_', '-')}={value}" for name, value in settings.items())]
    service = _curve("service", service_command(flags), case, made, args)
    engine = None if args.without_engine else _engine_alone(case, plans, settings)
    curves = [service]
    if not args.without_plain:
        plain = plain_command([f"--model={case.model}", f"--device={args.device}"])
        curves.append(_curve("plain", plain, case, made, args))
    return {
        "name": case.name,
        "picture_bytes": statistics.fmean(map(len, made)),
        "tokens_per_image": tokens,
        "engine_images_per_second": engine,
        "gpu_images_per_second": peak_images(service["info"].get("budgets", []), tokens),
        "curves": curves,
    }


def _curve(
    name: str, command: Sequence[str], case: Case, made: Sequence[bytes], args: argparse.Namespace
) -> dict[str, Any]:
    seconds = args.service_seconds if name == "service" else args.plain_seconds
    pace = Pace(args.seconds_per_step, seconds, args.processes, args.seed, case.size is None)
    with running(name, command, args.logs / f"{case.name}-{name}.log") as server:
        curve = Sweep(server, made, pace).run()
    told = asdict(curve) | {"command": list(command), "info": server.info}
    for step, measured in zip(told["steps"], curve.steps, strict=True):
        step["busiest"] = measured.usage.busiest
    return told


def _engine_alone(case: Case, plans: Sequence[PixelPlan], settings: Mapping[str, str]) -> float:
    """Images a second through queue and worker processes."""
    fixed = {"model": case.model, "load_format": "dummy", "cache_bytes": 0}
    ours = Settings.model_validate(fixed | dict(settings) | {"prep_workers": 1})
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        found = runner.run(bare_rate(ours, plans, ENGINE_SECONDS, IN_FLIGHT))
    print(f"  engine alone: {found['images/s']:.1f} images/s", flush=True)
    return found["images/s"]
