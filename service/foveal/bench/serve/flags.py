"""The flags of `foveal bench serve`, and what they become."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from foveal.bench.figures import plot_path
from foveal.bench.serve.payloads import ACCEPTS, CONTENT_TYPES, Target
from foveal.bench.serve.verdict import Limits
from foveal.errors import ConfigurationError
from foveal_client._defaults import from_environment

MAX_CONNECTIONS = 900
"""Of one process: select() sees file descriptors below 1024 only."""
MAX_PROCESSES = 8


def rates(text: str) -> list[float]:
    """'5,10,20' as numbers above 0."""
    found = [float(part) for part in text.split(",")]
    if min(found) <= 0:
        raise ValueError(text)
    return found


def share(text: str) -> float:
    """A number from 0 to 1."""
    if not 0 <= (value := float(text)) <= 1:
        raise ValueError(text)
    return value


def positive(text: str) -> float:
    """A number above 0."""
    if not 0 < (value := float(text)) < float("inf"):
        raise ValueError(text)
    return value


def _key() -> str | None:
    """The first of the keys that the server takes, from the same variable as the server and the SDK."""
    keys = (from_environment()[1] or "").split(",")
    return keys[0].strip() or None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """All flags of the command."""
    shown = "(default: %(default)s)"
    parser.add_argument("--url", required=True, help="of the server, http://HOST:PORT")
    parser.add_argument("--api-key", default=_key(), help="sent as bearer key (default: FOVEAL_API_KEY)")
    parser.add_argument("--wait-ready-seconds", type=float, default=60.0, help=f"wait for /ready this long {shown}")
    _add_arrivals(parser.add_argument_group("arrivals"))
    _add_pictures(parser.add_argument_group("pictures"))
    _add_requests(parser.add_argument_group("requests"))
    _add_results(parser.add_argument_group("results"))


def _add_arrivals(group: argparse._ArgumentGroup) -> None:
    shown = "(default: %(default)s)"
    group.add_argument("--rates", type=rates, default=[5.0, 10.0, 20.0], help="requests a second, as in 5,10,20")
    group.add_argument("--seconds", type=positive, default=20.0, help=f"counted time of each rate {shown}")
    group.add_argument("--warmup-seconds", type=float, default=2.0, help=f"sent before it, not counted {shown}")
    group.add_argument("--process", choices=("poisson", "constant"), default="poisson", help=f"of arrivals {shown}")
    group.add_argument("--trace", type=Path, help="CSV of seconds,width,height to replay instead of --rates")
    group.add_argument("--speed", type=positive, default=1.0, help=f"replay the trace this much faster {shown}")
    group.add_argument("--seed", type=int, default=0, help=f"of arrivals and pictures {shown}")


def _add_pictures(group: argparse._ArgumentGroup) -> None:
    shown = "(default: %(default)s)"
    group.add_argument("--size", action="append", help="WIDTHxHEIGHT; repeatable; default: a chat service's mixture")
    group.add_argument("--folder", type=Path, help="send the files of this folder")
    group.add_argument("--pictures", type=int, default=64, help=f"how many the mixture makes {shown}")
    group.add_argument("--duplicates", type=share, default=0.0, help=f"share sent again as the same bytes {shown}")


def _add_requests(group: argparse._ArgumentGroup) -> None:
    shown = "(default: %(default)s)"
    group.add_argument("--payload", choices=tuple(CONTENT_TYPES), default="raw", help=f"form of a request {shown}")
    group.add_argument("--images-per-request", type=int, default=1, help=f"more than one needs another form {shown}")
    group.add_argument("--answer", choices=tuple(ACCEPTS), default="safetensors", help=f"form of an answer {shown}")
    group.add_argument("--output", choices=("tokens", "pooled"), help="default: the model's")
    group.add_argument("--dtype", choices=("bfloat16", "float16", "float32"), help="default: the model's")
    group.add_argument("--option", action="append", default=[], help="NAME=VALUE, any option of /encode; repeatable")
    group.add_argument("--timeout-seconds", type=positive, default=30.0, help=f"deadline of each request {shown}")
    group.add_argument("--processes", type=int, default=0, help="generator processes; 0: half of the cores, at most 8")
    group.add_argument("--max-connections", type=int, default=512, help=f"of each generator process {shown}")


def _add_results(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--max-p99-ms", type=positive, help="exit code 1 where a rate's p99 is above")
    group.add_argument("--max-error-share", type=share, help="exit code 1 where more requests of a rate fail")
    group.add_argument(
        "--accept-codes", type=lambda text: text.split(","), default=[], help="codes that are no failure: overloaded"
    )
    group.add_argument("--json", type=Path, help="write all figures here")
    group.add_argument("--plot", type=plot_path, help="draw them here (needs matplotlib)")


def target_of(args: argparse.Namespace) -> Target:
    """Where requests go; raises ConfigurationError for flags that do not go together."""
    if args.images_per_request < 1 or args.pictures < 1:
        raise ConfigurationError("--images-per-request and --pictures start at 1")
    if args.payload == "raw" and args.images_per_request > 1:
        raise ConfigurationError("--payload raw carries one image; say multipart or json")
    if args.trace and args.images_per_request > 1:
        raise ConfigurationError("--trace has one image a request; leave out --images-per-request")
    if not 1 <= args.max_connections <= MAX_CONNECTIONS:
        raise ConfigurationError(f"--max-connections goes from 1 to {MAX_CONNECTIONS}; use more --processes for more")
    if args.warmup_seconds < 0:
        raise ConfigurationError("--warmup-seconds starts at 0")
    options = {name: value for name in ("output", "dtype") if (value := getattr(args, name))}
    for text in args.option:
        name, has_value, value = text.partition("=")
        if not has_value:
            raise ConfigurationError(f"--option {text}: say NAME=VALUE")
        options[name] = value
    target = Target(args.url.rstrip("/"), args.payload, args.answer, options, args.api_key, args.timeout_seconds)
    target.check()
    return target


def limits_of(args: argparse.Namespace) -> Limits:
    """What must hold."""
    return Limits(args.max_p99_ms, args.max_error_share)


def num_processes_of(args: argparse.Namespace) -> int:
    """Asked for, or half of the cores: the server may be on the same machine."""
    return int(args.processes) or max(1, min(MAX_PROCESSES, len(os.sched_getaffinity(0)) // 2))
