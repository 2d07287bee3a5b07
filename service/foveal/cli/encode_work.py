"""The work of `foveal encode`: pictures through a server into an output, until all are done or something stops it."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import errno
import hashlib
import signal
import sys
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

from foveal.cli.encode_inputs import Picture
from foveal.cli.encode_outputs import Output
from foveal.cli.encode_partial import OneFile
from foveal_client import (
    AsyncClient,
    ConnectionFailed,
    DeadlineExceeded,
    Embedding,
    EncodeOptions,
    FovealError,
    InvalidRequest,
    MethodNotAllowed,
    ModelNotFound,
    NotFound,
    Unauthorized,
)
from foveal_client._files import ReadingThreads, read_file

_HOPELESS = (ConnectionFailed, Unauthorized, ModelNotFound, NotFound, MethodNotAllowed)
"""Errors that every other picture would meet as well; so is `invalid_request` itself, which is about the options."""
_OF_ONE_FILE = {errno.ENAMETOOLONG, errno.EISDIR, errno.ENOTDIR, errno.EEXIST, errno.EILSEQ}
"""Errors of writing that are about one picture's name; any other would meet the next one too."""
OPTIONS = ("output", "dtype", "normalize", "min_pixels", "max_pixels", "background", "oversize")
_PROOFS = 3
"""Pictures that are encoded anew, at most, to see that a server still gives what is kept."""
_SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")
WRONG = 2


class Stopped(Exception):
    """A signal asked for the end."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.exit_code = 128 + number


@dataclass
class Tally:
    """What became of the pictures."""

    encoded: int = 0
    kept: int = 0
    """Of those, the ones that an earlier run had encoded."""
    tokens: int = 0
    failures: list[tuple[Picture, Exception]] = field(default_factory=list)
    stopped_by: Exception | None = None
    """Why the rest was not tried."""

    @property
    def exit_code(self) -> int:
        """The command's exit code."""
        if self.stopped_by is not None:
            return self.stopped_by.exit_code if isinstance(self.stopped_by, Stopped) else WRONG
        return 1 if self.failures else 0


class Job:
    """One run of the command: a client, pictures, and where their embeddings go."""

    def __init__(
        self, client: AsyncClient, pictures: Sequence[Picture], output: Output, args: argparse.Namespace
    ) -> None:
        self._client, self._pictures, self._output = client, pictures, output
        self._concurrency, self._timeout, self._quiet = args.concurrency, args.timeout, args.quiet
        self._options = cast(EncodeOptions, {name: getattr(args, name) for name in OPTIONS})
        self._threads = ReadingThreads()
        self._kept: dict[str, str] = {}
        """Hashes of what is in the output already, by name."""
        self.tally = Tally()

    async def run(self) -> None:
        """Encode and keep every picture, in order; bad ones are noted and passed over. Raises OSError of the output."""
        work = asyncio.current_task()
        assert work is not None

        def stop(number: int) -> None:
            self.tally.stopped_by = Stopped(number)
            work.cancel()

        with _on_signals(stop):
            try:
                async with self._client:
                    await self._go_on()
                    if self.tally.stopped_by is None:
                        await self._encode_all()
            except asyncio.CancelledError:
                if not isinstance(self.tally.stopped_by, Stopped):
                    raise

    async def _go_on(self) -> None:
        """Find out what an earlier run left that still holds: by content, options, and one picture encoded anew."""
        output = self._output
        if not isinstance(output, OneFile) or not (kept := dict(output.kept)):
            return
        failed: Exception | None = None
        tries = 0
        for picture in self._pictures:
            if tries == _PROOFS or not await self._is_unchanged(picture, kept.get(picture.name)):
                continue
            result, tries = await self._encode(picture), tries + 1
            if not isinstance(result, Exception):
                if why := output.differs(picture.name, result):
                    output.start_new(why)
                else:
                    self._kept = kept
                return
            failed = result
            if _is_hopeless(result):
                break
        if failed is not None:
            self.tally.stopped_by = failed
        else:
            output.start_new("none of its pictures is among these, or all of them changed")

    async def _encode_all(self) -> None:
        from tqdm import tqdm  # type: ignore[import-untyped]

        disable = True if self._quiet else None
        bar: Any = tqdm(total=len(self._pictures), unit="picture", file=sys.stderr, disable=disable)
        async with aclosing(self._embeddings()) as results:
            with bar:
                async for picture, result in results:
                    await self._keep(picture, result)
                    bar.update()
                    if self.tally.stopped_by is not None:
                        break

    async def _embeddings(self) -> AsyncGenerator[tuple[Picture, Embedding | Exception | None]]:
        """Results in the order of the pictures, with at most so many of them at work or waiting to be taken."""
        tasks: deque[tuple[Picture, asyncio.Task[Embedding | Exception | None]]] = deque()
        try:
            for picture in self._pictures:
                if len(tasks) == self._concurrency:
                    first, task = tasks.popleft()
                    yield first, await task
                tasks.append((picture, asyncio.create_task(self._encode_or_find(picture))))
            while tasks:
                first, task = tasks.popleft()
                yield first, await task
        finally:
            for _, task in tasks:
                task.cancel()
            await asyncio.gather(*(task for _, task in tasks), return_exceptions=True)

    async def _encode_or_find(self, picture: Picture) -> Embedding | Exception | None:
        """None for a picture that is in the output already."""
        if await self._is_unchanged(picture, self._kept.get(picture.name)):
            return None
        return await self._encode(picture)

    async def _encode(self, picture: Picture) -> Embedding | Exception:
        try:
            return await self._client.encode(picture.path, **self._options)
        except (FovealError, OSError) as error:
            return error

    async def _is_unchanged(self, picture: Picture, sha256: str | None) -> bool:
        """True when the file has this hash; one that cannot be read has none, which its own encoding will tell."""
        if sha256 is None:
            return False
        try:
            return await self._threads.run(partial(_hash, picture), self._timeout) == sha256
        except (OSError, DeadlineExceeded):
            return False

    async def _keep(self, picture: Picture, result: Embedding | Exception | None) -> None:
        """Write one embedding, in a thread, or note why there is none."""
        tally = self.tally
        if result is None:
            assert isinstance(self._output, OneFile), "only one file is gone on from: this is a bug"
            tally.encoded, tally.kept = tally.encoded + 1, tally.kept + 1
            tally.tokens += self._output.tokens_of(picture.name)
        elif isinstance(result, Exception):
            if _is_hopeless(result):
                tally.stopped_by = result
            else:
                tally.failures.append((picture, result))
        else:
            try:
                await asyncio.to_thread(self._output.add, picture.name, result)
            except (ValueError, OSError) as error:
                if isinstance(error, OSError) and error.errno not in _OF_ONE_FILE:
                    raise
                tally.failures.append((picture, error))
                return
            tally.encoded += 1
            tally.tokens += result.tokens


def _is_hopeless(error: Exception) -> bool:
    return isinstance(error, _HOPELESS) or type(error) is InvalidRequest


def _hash(picture: Picture) -> str:
    return hashlib.sha256(read_file(picture.path)).hexdigest()


@contextlib.contextmanager
def _on_signals(stop: Callable[[int], None]) -> Iterator[None]:
    """Call `stop` for the first signal that asks for the end; the second does what it does without us.

    One that is ignored stays so: the command was begun by nohup, or in the background of a script.
    """
    loop = asyncio.get_running_loop()
    numbers = [getattr(signal, name) for name in _SIGNALS if hasattr(signal, name)]
    heard = [number for number in numbers if signal.getsignal(number) not in (signal.SIG_IGN, None)]
    if threading.current_thread() is not threading.main_thread():
        heard = []  # only the main thread is told of signals

    def first(number: int) -> None:
        forget()
        stop(number)

    def forget() -> None:
        for number in heard:
            loop.remove_signal_handler(number)

    for number in heard:
        loop.add_signal_handler(number, first, number)
    try:
        yield
    finally:
        forget()
