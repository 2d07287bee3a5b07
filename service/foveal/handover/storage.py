"""Shared storage: held embeddings as files, for LLM servers that read a folder (vLLM's ECExampleConnector).

A file stays at least as long as a promise does: one that has been announced and is gone ends the server that reads it.
So a folder that is full of young files refuses new ones. Old files are removed by age, and by size, oldest first;
those of an earlier run too, and never a file that another program wrote. Files are written in threads of its own, from
the worker's very block. Nobody is told of a file that is not there as it was written: it is then written anew.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from foveal.errors import FovealError, Overloaded, TooLarge, Unavailable
from foveal.handover import folder as files
from foveal.handover.ec_file import Buffer
from foveal.handover.folder import Published
from foveal.metrics import Metrics
from foveal_client._waiting import WaitingThreads

log = logging.getLogger(__name__)

THREADS = 4
RETRY_AFTER_SECONDS = 5.0
CLOSE_SECONDS = 5.0
_FULL = (errno.ENOSPC, errno.EDQUOT)
Result = TypeVar("Result")


class SharedStorage:
    """One folder. What is known of it lives on the loop; the threads know only what they are told."""

    def __init__(
        self,
        folder: Path,
        max_bytes: int,
        seconds: float,
        promised_seconds: float,
        metrics: Metrics,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._folder, self.max_bytes = folder, max_bytes
        self.seconds, self.promised_seconds = seconds, promised_seconds
        self._metrics, self._clock = metrics, clock
        self._files: dict[str, Published] = {}
        self._bytes = 0
        self._writing: dict[str, asyncio.Task[None]] = {}
        self._threads = WaitingThreads(THREADS, "shared-storage")

    async def open(self) -> None:
        """Take on the files of an earlier run; raises Unavailable."""
        self._files = await self._run(files.scan, self._clock() - self.seconds)
        self._bytes = sum(file.num_bytes for file in self._files.values())
        await self.clean()

    async def publish(self, name: str, key: str, buffers: Sequence[Buffer]) -> None:
        """Have the file of `name` hold the embedding of `key`; raises Overloaded, TooLarge or Unavailable.

        A caller who leaves does not stop it half way.
        """
        while (before := self._writing.get(name)) is not None:
            await asyncio.wait((before,))  # another request's: it may have failed, or hold another picture
        task = self._writing[name] = asyncio.create_task(self._publish(name, key, buffers))
        task.add_done_callback(lambda task: self._forget(name, task))
        await asyncio.shield(task)

    async def clean(self) -> None:
        """Remove what is too old. A file that cannot be removed is logged, counts on, and is tried again."""
        limit = self._clock() - (self.seconds - self.promised_seconds)  # of the moments until which they were promised
        for name, file in list(self._files.items()):
            if file.until <= limit and name not in self._writing:
                try:
                    await self._remove(name, file)
                except FovealError:
                    return  # logged; the next would fail the same way

    async def close(self) -> None:
        """Let files that are being written be finished. A folder that hangs keeps nobody from ending."""
        if self._writing:
            await asyncio.wait(self._writing.values(), timeout=CLOSE_SECONDS)
        self._threads.close()

    def shown(self) -> dict[str, float]:
        """For /info."""
        return {"max_bytes": self.max_bytes, "bytes": self._bytes, "entries": len(self._files), "seconds": self.seconds}

    async def _publish(self, name: str, key: str, buffers: Sequence[Buffer]) -> None:
        old, until = self._files.get(name), self._clock() + self.promised_seconds
        if old and old.key == key and (renewed := await self._run(files.renew, name, old, until)):
            self._keep(name, renewed)
            return
        old, size = self._files.get(name), sum(len(buffer) for buffer in buffers)  # it may have gone meanwhile
        await self._make_room(size - (old.num_bytes if old else 0), size)
        self._keep(name, Published(key, size, until))  # before it is written: others must not take its room meanwhile
        try:
            self._keep(name, await self._write(name, key, buffers, until, size))
        except FovealError:
            self._keep(name, old)
            raise

    async def _write(self, name: str, key: str, buffers: Sequence[Buffer], until: float, size: int) -> Published:
        """Tried again as long as a full disk can be given room."""
        while True:
            try:
                return await self._in_thread(files.write, name, key, buffers, until)
            except OSError as error:
                if error.errno not in _FULL or not await self._give_up(size):
                    raise self._failure(error, files.write, name) from None

    async def _make_room(self, more: int, size: int) -> None:
        if size > self.max_bytes:
            raise TooLarge(
                f"an embedding of this request is {size} bytes, more than the {self.max_bytes} of "
                "--ec-shared-storage-bytes; send a smaller image"
            )
        while self._bytes + more > self.max_bytes:
            if not await self._give_up(1):
                raise Overloaded(
                    f"the shared storage holds the {self.max_bytes} bytes of --ec-shared-storage-bytes, all of them "
                    "younger than --handover-seconds; try again",
                    retry_after=RETRY_AFTER_SECONDS,
                )

    async def _give_up(self, num_bytes: int) -> bool:
        """Remove files whose promise is over, oldest first, of at least so many bytes; False if there was none."""
        given_up = 0
        while given_up < num_bytes and (oldest := self._oldest()) is not None:
            await self._remove(*oldest)
            given_up += oldest[1].num_bytes if oldest[0] not in self._files else 0
        return given_up > 0

    def _oldest(self) -> tuple[str, Published] | None:
        now = self._clock()
        over = [item for item in self._files.items() if item[1].until <= now and item[0] not in self._writing]
        return min(over, key=lambda item: item[1].until, default=None)

    async def _remove(self, name: str, file: Published) -> None:
        longer = await self._run(files.remove, name, file)
        if self._files.get(name) is not file:
            return  # published anew meanwhile
        self._keep(name, None if longer is None else replace(file, until=longer))

    def _keep(self, name: str, file: Published | None) -> None:
        if (old := self._files.pop(name, None)) is not None:
            self._bytes -= old.num_bytes
        if file is not None:
            self._files[name] = file
            self._bytes += file.num_bytes
        self._metrics.storage_bytes.set(self._bytes)

    def _forget(self, name: str, task: asyncio.Task[None]) -> None:
        if self._writing.get(name) is task:
            del self._writing[name]
        if not task.cancelled():
            task.exception()  # every caller may have left: it was theirs to see

    async def _run(self, work: Callable[..., Result], *args: object) -> Result:
        try:
            return await self._in_thread(work, *args)
        except OSError as error:
            raise self._failure(error, work, args[0]) from None

    async def _in_thread(self, work: Callable[..., Result], *args: object) -> Result:
        return await self._threads.run(work, self._folder, *args)

    def _failure(self, error: OSError, work: Callable[..., object], about: object) -> FovealError:
        """What a request is told of it; the log has more."""
        log.error("shared storage failed", extra={"work": work.__name__, "entry": about, "error": str(error)})
        if error.errno in _FULL:
            return Overloaded("the disk of the shared storage is full", retry_after=RETRY_AFTER_SECONDS)
        return Unavailable(
            f"the shared storage failed: {error.strerror}; its operator must look after it",
            retry_after=RETRY_AFTER_SECONDS,
        )
