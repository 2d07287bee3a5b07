"""`foveal encode`: pictures of files and folders → embeddings in files, through a running server.

Needs the base dependencies only, so that it works where nothing but the SDK is installed.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import httpx

from foveal.cli.encode_inputs import Picture, find_pictures
from foveal.cli.encode_outputs import Folder, OneFile, Output, write_answer, write_npy, write_npy_bits
from foveal_client import (
    AsyncClient,
    ConnectionFailed,
    Embedding,
    EncodeOptions,
    FovealError,
    InvalidRequest,
    MethodNotAllowed,
    ModelNotFound,
    NotFound,
    Unauthorized,
)

TIMEOUT_SECONDS = 120.0
MAX_RETRIES = 5
_HOPELESS = (ConnectionFailed, Unauthorized, ModelNotFound, NotFound, MethodNotAllowed)
"""Errors that every other picture would meet as well; so is `invalid_request` itself, which is about the options."""
_OPTIONS = ("output", "dtype", "normalize", "min_pixels", "max_pixels", "background", "oversize")
_EPILOG = """exit codes: 0 all pictures were encoded; 1 some were not (they are listed at the end);
2 the arguments are wrong, the output cannot be written, or the server cannot be used."""


@dataclass
class Tally:
    """What became of the pictures."""

    encoded: int = 0
    tokens: int = 0
    failures: list[tuple[Picture, Exception]] = field(default_factory=list)
    stopped_by: FovealError | None = None
    """Why the rest was not tried."""

    @property
    def exit_code(self) -> int:
        """The command's exit code."""
        if self.stopped_by is not None:
            return 2
        return 1 if self.failures else 0


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
        pictures = find_pictures(args.paths, args.recursive)
        client = AsyncClient(
            args.url, api_key=args.api_key, timeout=args.timeout, max_retries=MAX_RETRIES, transport=transport
        )
        with closing(_open_output(args)) as output:
            tally = asyncio.run(_encode_all(client, pictures, output, args))
            output.finish()
    except (ValueError, OSError) as error:
        print(f"foveal encode: {error}", file=sys.stderr)
        return 2
    _report(tally, len(pictures), args)
    return tally.exit_code


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


def _open_output(args: argparse.Namespace) -> Output:
    """Where embeddings go. Raises OSError or ValueError before any picture is sent."""
    if args.output_file is not None:
        if args.format != "safetensors" or args.npy_bits:
            raise ValueError("--output-file is always one .safetensors; .npy files need --output-dir")
        if args.output_file.is_dir():
            raise ValueError(f"{args.output_file} is a folder; --output-dir writes into one")
        return OneFile(args.output_file)
    if args.format == "npy":
        return Folder(args.output_dir, ".npy", write_npy_bits if args.npy_bits else write_npy)
    return Folder(args.output_dir, ".safetensors", write_answer)


async def _encode_all(
    client: AsyncClient, pictures: Sequence[Picture], output: Output, args: argparse.Namespace
) -> Tally:
    """Encode and keep every picture, in order; bad ones are noted and passed over."""
    from tqdm import tqdm  # type: ignore[import-untyped]

    options = cast(EncodeOptions, {name: getattr(args, name) for name in _OPTIONS})
    tally = Tally()
    bar: Any = tqdm(total=len(pictures), unit="picture", file=sys.stderr, disable=True if args.quiet else None)
    async with client, aclosing(_embeddings(client, pictures, options, args.concurrency)) as results:
        with bar:
            async for picture, result in results:
                await _keep(output, picture, result, tally)
                bar.update()
                if tally.stopped_by is not None:
                    break
    return tally


async def _embeddings(
    client: AsyncClient, pictures: Sequence[Picture], options: EncodeOptions, concurrency: int
) -> AsyncGenerator[tuple[Picture, Embedding | Exception]]:
    """Results in the order of the pictures, with at most `concurrency` of them at work or waiting to be taken."""
    tasks: deque[tuple[Picture, asyncio.Task[Embedding | Exception]]] = deque()
    try:
        for picture in pictures:
            if len(tasks) == concurrency:
                first, task = tasks.popleft()
                yield first, await task
            tasks.append((picture, asyncio.create_task(_encode(client, picture, options))))
        while tasks:
            first, task = tasks.popleft()
            yield first, await task
    finally:
        for _, task in tasks:
            task.cancel()
        await asyncio.gather(*(task for _, task in tasks), return_exceptions=True)


async def _encode(client: AsyncClient, picture: Picture, options: EncodeOptions) -> Embedding | Exception:
    try:
        return await client.encode(picture.path, **options)
    except (FovealError, OSError) as error:
        return error


async def _keep(output: Output, picture: Picture, result: Embedding | Exception, tally: Tally) -> None:
    """Write one embedding, in a thread, or note why there is none."""
    if isinstance(result, _HOPELESS) or type(result) is InvalidRequest:
        tally.stopped_by = result
        return
    if isinstance(result, Exception):
        tally.failures.append((picture, result))
        return
    try:
        await asyncio.to_thread(output.add, picture.name, result)
    except ValueError as error:
        tally.failures.append((picture, error))
        return
    tally.encoded += 1
    tally.tokens += result.tokens


def _report(tally: Tally, total: int, args: argparse.Namespace) -> None:
    """Failures one a line, then what was done; all on stderr."""
    for picture, error in tally.failures:
        print(f"{picture.path}: {error}", file=sys.stderr)
    if tally.stopped_by is not None:
        print(f"foveal encode: {tally.stopped_by}", file=sys.stderr)
        print(f"foveal encode: stopped after {tally.encoded} of {total} pictures", file=sys.stderr)
    elif tally.failures:
        print(f"foveal encode: {len(tally.failures)} of {total} pictures failed", file=sys.stderr)
    if tally.encoded and not args.quiet:
        where = args.output_file or args.output_dir
        print(f"{tally.encoded} pictures, {tally.tokens} tokens -> {where}", file=sys.stderr)
