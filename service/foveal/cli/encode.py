"""`foveal encode`: pictures of files and folders → embeddings in files, through a running server.

Needs the base dependencies only, so that it works where nothing but the SDK is installed.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import httpx

from foveal.cli.encode_inputs import Picture, find_pictures
from foveal.cli.encode_outputs import Folder, Output, write_answer, write_npy, write_npy_bits
from foveal.cli.encode_partial import OneFile
from foveal.cli.encode_work import OPTIONS, WRONG, Job, Tally
from foveal_client import AsyncClient

TIMEOUT_SECONDS = 120.0
MAX_RETRIES = 5
_EPILOG = """exit codes: 0 all pictures were encoded; 1 some were not (they are listed at the end);
2 the arguments are wrong, the output cannot be written, or the server cannot be used; 130, 143 stopped by a signal.

A command that is stopped keeps what it has in OUT.safetensors.partial, and the same command goes on from there."""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `encode` to the commands; `run` is its entry."""
    parser = subparsers.add_parser(
        "encode",
        help="encode files or folders of pictures through a running server",
        description="Encode pictures through a running foveal server and keep the embeddings in files.",
        epilog=_EPILOG,
        allow_abbrev=False,
    )
    parser.add_argument("paths", nargs="+", type=Path, metavar="FILE_OR_FOLDER")
    parser.add_argument("--recursive", action="store_true", help="look into folders below folders")
    parser.add_argument("--url", help="of the server (default: $FOVEAL_URL or http://127.0.0.1:8000)")
    parser.add_argument("--api-key", help="default: $FOVEAL_API_KEY, which other users of this machine cannot see")
    parser.add_argument("--concurrency", type=_positive, default=8, metavar="N", help="pictures at once (default: 8)")
    parser.add_argument("--timeout", type=float, default=TIMEOUT_SECONDS, metavar="SECONDS", help="for each picture")
    parser.add_argument("--quiet", action="store_true", help="no progress bar and no summary; failures are still told")
    _add_outputs(parser)
    _add_options(parser)


def run(args: argparse.Namespace, transport: httpx.AsyncBaseTransport | None = None) -> int:
    """Encode what the command line asks for; returns the exit code. `transport` replaces the network in tests."""
    try:
        _check_output(args)
        found = find_pictures(args.paths, args.recursive)
        client = AsyncClient(
            args.url, api_key=args.api_key, timeout=args.timeout, max_retries=MAX_RETRIES, transport=transport
        )
        output = _open_output(args, found.pictures)
    except (ValueError, OSError) as error:
        _tell(error)
        return WRONG
    job = Job(client, found.pictures, output, args)
    job.tally.failures += found.unreadable
    with closing(output):
        said = _work(job, output)
    _report(job.tally, len(found.pictures), args, said)
    return job.tally.exit_code


def _work(job: Job, output: Output) -> str | None:
    """Do the job, and give its output the final name or keep what there is; a sentence to tell of that."""
    tally = job.tally
    try:
        asyncio.run(job.run())
        if tally.stopped_by is None:
            return output.finish(len(tally.failures))
    except OSError as error:  # the output's: a full disk, say
        tally.stopped_by = error
    except BaseException:  # not ours to judge, but nothing is lost by it
        if said := output.keep():
            _tell(said)
        raise
    return output.keep()


def _add_outputs(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("where to")
    place = group.add_mutually_exclusive_group(required=True)
    place.add_argument("--output-file", type=Path, metavar="OUT.safetensors", help="all pictures, by name, in one file")
    place.add_argument("--output-dir", type=Path, metavar="DIR", help="a file for each picture, and manifest.json")
    group.add_argument(
        "--format",
        choices=["safetensors", "npy"],
        default="safetensors",
        help="of the files in --output-dir (default: safetensors). .npy has no bfloat16: stored as float32, "
        "without loss, unless --npy-bits is given",
    )
    group.add_argument("--npy-bits", action="store_true", help="store bfloat16 in .npy as its 16 bits, as uint16")


def _add_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("how to encode", "What is left out is the server's default.")
    group.add_argument("--output", choices=["tokens", "pooled"], help="a row for each token, or one for each picture")
    group.add_argument("--dtype", choices=["bfloat16", "float16", "float32"])
    group.add_argument("--normalize", action="store_const", const=True, help="to length 1; with --output pooled")
    group.add_argument("--min-pixels", type=_positive, metavar="N", help="enlarge smaller pictures to this area")
    group.add_argument("--max-pixels", type=_positive, metavar="N", help="shrink larger pictures to this area")
    group.add_argument("--background", metavar="COLOUR", help="under transparency: white, black or #rrggbb")
    group.add_argument("--oversize", choices=["reject", "downscale"], help="pictures of too many tokens")


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 up")
    return int(text)


def _check_output(args: argparse.Namespace) -> None:
    """Raises ValueError for a place that nothing can be written to, or whose ending promises another format."""
    path: Path | None = args.output_file
    if path is None:
        return
    if args.format != "safetensors" or args.npy_bits or path.suffix.lower() == ".npy":
        raise ValueError("--output-file is always one .safetensors; .npy files need --output-dir and --format npy")
    if path.is_dir():
        raise ValueError(f"{path} is a folder; --output-dir writes into one")
    if path.suffix.lower() != ".safetensors":
        has = f"the ending {path.suffix}" if path.suffix else "no ending"
        raise ValueError(f"--output-file {path} has {has}; only .safetensors files are written: give it that ending")
    if path.exists() and not path.is_file():
        raise ValueError(f"{path} is no regular file; choose another --output-file")


def _open_output(args: argparse.Namespace, pictures: Sequence[Picture]) -> Output:
    """Where embeddings go. Raises OSError or ValueError before any picture is sent."""
    options = {name: getattr(args, name) for name in OPTIONS}
    if args.output_file is not None:
        return OneFile(args.output_file, [picture.name for picture in pictures], options, _tell)
    if args.format == "npy":
        return Folder(args.output_dir, ".npy", write_npy_bits if args.npy_bits else write_npy, options)
    return Folder(args.output_dir, ".safetensors", write_answer, options)


def _report(tally: Tally, total: int, args: argparse.Namespace, said: str | None) -> None:
    """Failures one a line, then what was done; all on stderr."""
    for picture, error in tally.failures:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        print(f"{picture.path}: {reason}", file=sys.stderr)
    if tally.stopped_by is not None:
        _tell(tally.stopped_by)
        _tell(f"stopped after {tally.encoded} of {total} pictures")
    elif tally.failures:
        _tell(f"{len(tally.failures)} of {total} pictures failed")
    if said is not None:
        _tell(said)
    elif tally.encoded and not args.quiet:
        where = args.output_file or args.output_dir
        earlier = f" ({tally.kept} of them by an earlier run)" if tally.kept else ""
        print(f"{tally.encoded} pictures{earlier}, {tally.tokens} tokens -> {where}", file=sys.stderr)


def _tell(what: object) -> None:
    print(f"foveal encode: {what}", file=sys.stderr)
