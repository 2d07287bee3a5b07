"""`foveal bench NAME`: each bench is a module with `add_arguments` and `run`, imported when it is used."""

from __future__ import annotations

import argparse
import importlib

from foveal.cli.parsers import Parser, refuse_command
from foveal.errors import ConfigurationError

BENCHES = {
    "packing": "simulate rules of packing over a mixture of image sizes",
    "engine": "one worker's insides on a GPU, beside transformers and the floor",
    "families": "each family on a GPU, beside transformers",
    "workers": "several worker processes on GPUs against one",
    "serve": "what a running server holds: open-loop load",
    "curves": "latency over rate of the whole service beside a plain server, and what limits it",
    "report": "the tables and a picture of what curves wrote",
}
MODULES = {
    "packing": "foveal.cli.bench_packing",
    "engine": "foveal.bench.engine",
    "families": "foveal.bench.families",
    "workers": "foveal.bench.workers",
    "serve": "foveal.bench.serve.command",
    "curves": "foveal.bench.curves.command",
    "report": "foveal.bench.curves.report",
}


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The names of the benches; their flags are read by `run`."""
    names = "\n".join(f"  {name:10} {summary}" for name, summary in BENCHES.items())
    parser = subparsers.add_parser(
        "bench",
        help="simulate or measure parts of the service",
        epilog=f"benches:\n{names}\n\nfoveal bench NAME --help shows the flags of one",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", metavar="NAME", help="which one, see below")
    parser.add_argument("flags", nargs=argparse.REMAINDER, help="its own flags")


def run(args: argparse.Namespace) -> int:
    """Run one bench; the exit code."""
    if args.name not in BENCHES:
        refuse_command(Parser(prog="foveal bench", usage="foveal bench NAME ..."), args.name, tuple(BENCHES))
    parser = Parser(prog=f"foveal bench {args.name}", description=BENCHES[args.name])
    try:
        module = importlib.import_module(MODULES[args.name])
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("foveal"):
            raise
        raise ConfigurationError(
            f"this bench needs the package {error.name}; on a GPU machine it comes with torch, elsewhere there is "
            "nothing to measure"
            if error.name == "triton"
            else f"this bench needs the package {error.name}: pip install 'foveal[service,demo]'"
        ) from None
    module.add_arguments(parser)
    return int(module.run(parser.parse_args(args.flags)))
