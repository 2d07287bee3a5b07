"""The `foveal` command. Each subcommand is a file with `add_parser` and `run`, imported when it is used."""

from __future__ import annotations

import errno
import importlib
import os
import select
import sys
from typing import TextIO

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


OUTPUT_FAILED, NOBODY_READS = 1, 128 + 13
"""13 is SIGPIPE: what a shell sees of other programs whose output nobody reads any more."""


def main(argv: list[str] | None = None) -> int:
    """Entry point; the exit code. Ends quietly when what it prints to is closed, as by `| head`."""
    try:
        try:
            return _run(argv)
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except BrokenPipeError:
        if not any(map(_is_closed, (sys.stdout, sys.stderr))):
            raise
        _print_no_more()
        return NOBODY_READS
    except OSError as error:
        if error.filename is not None or error.errno not in (errno.ENOSPC, errno.EIO):
            raise
        _print_no_more()
        print(f"foveal: the output cannot be written: {error.strerror}", file=sys.stderr)
        return OUTPUT_FAILED


def _run(argv: list[str] | None) -> int:
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


def _is_closed(stream: TextIO | None) -> bool:
    """True for a pipe or a terminal that has no other end any more."""
    if stream is None:
        return False
    poll = select.poll()
    poll.register(stream.fileno(), 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


def _print_no_more() -> None:
    """Have what is still to be printed go nowhere: the interpreter would complain of it at its end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def _module(name: str):  # type: ignore[no-untyped-def]
    try:
        return importlib.import_module(f"foveal.cli.{name}")
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("foveal"):
            raise
        raise SystemExit(f"foveal {name} needs the package {error.name}: pip install 'foveal[service]'") from None
