"""`foveal demo`: start a server, encode pictures, print a table, draw what came out."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

import httpx
import numpy as np

from foveal.demo.drawing import draw, principal_colours, similarities
from foveal.demo.pictures import Picture, load, shipped
from foveal.demo.server import serving
from foveal.errors import ConfigurationError
from foveal_client import Client, Embedding

READY_SECONDS = 300
POLL_SECONDS = 0.2
MERGE_SIZE = 2
STAGES = ("prep", "queue", "encode", "total")


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The flags of the command."""
    parser = subparsers.add_parser("demo", help="start a server, encode pictures, draw what came out")
    parser.add_argument("pictures", nargs="*", type=Path, help="pictures to use instead of the shipped ones")
    parser.add_argument("--model", default="builtin:tiny", help="as in foveal serve (default: %(default)s)")
    parser.add_argument("--device", default="auto", help="as in foveal serve (default: %(default)s)")
    parser.add_argument("--output-dir", type=Path, default=Path("demo-output"), help="default: %(default)s")


def run(args: argparse.Namespace) -> int:
    """Run the demo; the exit code."""
    missing = [str(path) for path in args.pictures if not path.is_file()]
    if missing:
        raise ConfigurationError(f"no such picture: {', '.join(missing)}")
    args.output_dir.mkdir(parents=True, exist_ok=True)
    pictures = load(args.pictures or shipped())
    with serving(["--model", args.model, "--device", args.device, "--log-level", "warning"]) as url:
        print(f"server at {url}, waiting for its workers ...", flush=True)
        seconds = _wait_ready(url)
        print(f"ready after {seconds:.1f} s\n")
        with Client(url) as client:
            info = client.info()
            tokens = [client.encode(picture.image, dtype="float32") for picture in pictures]
            pooled = [client.encode(picture.image, output="pooled", dtype="float32") for picture in pictures]
    _print_table(pictures, tokens)
    similarity = similarities([e.values for e in pooled])
    _print_neighbours(pictures, similarity)
    path = args.output_dir / "demo.png"
    chosen = next((i for i, p in enumerate(pictures) if p.name == "cat"), 0)
    _, h, w = tokens[chosen].grid_thw
    colours = principal_colours(tokens[chosen].level(0), h // MERGE_SIZE, w // MERGE_SIZE)
    draw(path, pictures, similarity, pictures[chosen], colours, f"foveal demo with {info.model}")
    print(f"\ndrawn: {path}")
    if args.model.startswith("builtin:"):
        print("built-in models have random weights: likeness here is of colours and shapes, not of meaning")
    return 0


def _wait_ready(url: str) -> float:
    began = time.monotonic()
    with httpx.Client(base_url=url, trust_env=False) as http:
        while time.monotonic() - began < READY_SECONDS:
            try:
                if http.get("/ready").status_code == httpx.codes.OK:
                    return time.monotonic() - began
            except httpx.ConnectError:
                raise ConfigurationError("the server ended while it started; its log above says why") from None
            time.sleep(POLL_SECONDS)  # noqa: TID251  (nothing else runs in this command)
    raise ConfigurationError(f"the server was not ready after {READY_SECONDS} s")


def _print_table(pictures: Sequence[Picture], tokens: Sequence[Embedding]) -> None:
    print(
        f"{'picture':24} {'pixels':>11} {'grid':>10} {'tokens':>7} {'shape':>12}" + "".join(f"{s:>9}" for s in STAGES)
    )
    for picture, e in zip(pictures, tokens, strict=True):
        size = "{}x{}".format(*picture.image.size)
        grid = "{}x{}x{}".format(*e.grid_thw)
        shape = "x".join(map(str, e.values.shape))
        times = "".join(f"{e.timings.get(stage, 0.0):9.1f}" for stage in STAGES)
        print(f"{picture.name:24} {size:>11} {grid:>10} {e.tokens:>7} {shape:>12}{times}")
    print("(stages in milliseconds, from the Server-Timing header)\n")


def _print_neighbours(
    pictures: Sequence[Picture], similarity: np.ndarray[tuple[int, ...], np.dtype[np.float32]]
) -> None:
    others = similarity - 2 * np.eye(len(pictures), dtype=similarity.dtype)
    for picture, row in zip(pictures, others, strict=True):
        nearest = int(row.argmax())
        print(f"{picture.name:24} is nearest to {pictures[nearest].name} ({row[nearest]:.2f})")
