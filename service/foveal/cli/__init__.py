"""The `foveal` command. Each subcommand is a file with `add_parser` and `run`, imported when it is used."""

from __future__ import annotations

import importlib
import sys

from foveal import __version__
from foveal.cli.parsers import Parser, refuse_command
from foveal.errors import ConfigurationError

COMMANDS = {
    "serve": "run the encoding server",
    "encode": "encode files or folders through a running server",
    "info": "show what a running server serves",
    "models": "list model families and built-in models",
    "demo": "start a server, encode pictures, draw what came out",
    "bench": "simulate or measure parts of the service",
}


def main(argv: list[str] | None = None) -> int:
    """Entry point; the exit code."""
    args = sys.argv[1:] if argv is None else argv
    parser = Parser(prog="foveal", description="Images in, vision-encoder embeddings out.")
    parser.add_argument("--version", action="version", version=f"foveal {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    if args and not args[0].startswith("-") and args[0] not in COMMANDS:
        refuse_command(parser, args[0], tuple(COMMANDS))
    chosen = args[0] if args and args[0] in COMMANDS else None
    for name, summary in COMMANDS.items():
        if name == chosen:
            _module(name).add_parser(subparsers)
        else:
            subparsers.add_parser(name, help=summary)
    parsed = parser.parse_args(args)
    try:
        return int(_module(parsed.command).run(parsed))
    except ConfigurationError as error:
        print(f"foveal: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def _module(name: str):  # type: ignore[no-untyped-def]
    try:
        return importlib.import_module(f"foveal.cli.{name}")
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("foveal"):
            raise
        raise SystemExit(f"foveal {name} needs the package {error.name}: pip install 'foveal[service]'") from None
