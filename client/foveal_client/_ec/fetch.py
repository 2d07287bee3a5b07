"""One embedding by its key: from shared storage, else from a foveal server, waiting while it is not there yet.

What comes back has been checked against what vLLM expects: nothing else is ever shown to the engine. No vLLM here.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from foveal_client._ec.memory import TENSOR, MemoryFile
from foveal_client._ec.settings import PickupSettings
from foveal_client._errors import InvalidResponse
from foveal_client._handover import Grid, InvalidEmbedding, validate_embedding, validate_grid
from foveal_client._requests import timeout_header
from foveal_client._retry import Clock
from foveal_client._waiting import WaitingThreads

FILE = "encoder_cache.safetensors"
CONNECT_SECONDS = 5.0
FIRST_WAIT_SECONDS = 0.02
MAX_WAIT_SECONDS = 0.5
_MAX_ITEM_BYTES = 4
_HEADER_BYTES = 64 << 10
_NO_MEMORY = "there is no memory for it"
_BATCH_BYTES, _BATCH_CHUNKS = 1 << 21, 256
_HOPELESS = frozenset({400, 401, 403, 405, 410, 422})
"""Statuses that waiting does not mend."""


class PickupFailed(Exception):
    """This embedding will not come; the text says why."""


@dataclass(frozen=True)
class Need:
    """One picture of a request as vLLM knows it, and so what must come."""

    key: str
    grid: Grid
    width: int
    merge_size: int

    @property
    def num_tokens(self) -> int:
        """Rows that the grid gives."""
        t, h, w = self.grid
        return t * h * w // self.merge_size**2

    @property
    def max_bytes(self) -> int:
        """Of a file with such rows, in the widest dtype."""
        return self.num_tokens * self.width * _MAX_ITEM_BYTES + _HEADER_BYTES


class Fetcher:
    """Fetches on the loop that its coroutines run on.

    What may wait in the kernel is left to threads, and nobody waits for those longer than the timeout.
    """

    def __init__(self, settings: PickupSettings, http: httpx.AsyncClient, clock: Clock | None = None) -> None:
        self._settings = settings
        self._http = http
        self._clock = clock or Clock()
        self._transfers = asyncio.Semaphore(settings.max_connections)
        # Apart: a folder whose disk or network hangs may take all of its threads, and servers are still asked.
        self._folder_threads = WaitingThreads(settings.max_connections, "foveal-folder")
        self._memory_threads = WaitingThreads(settings.max_connections, "foveal-memory")

    def close(self) -> None:
        """End the threads; no fetch may be on its way."""
        self._folder_threads.close()
        self._memory_threads.close()

    async def fetch(self, need: Need) -> MemoryFile:
        """The file, sealed and checked. Raises PickupFailed: at once for what is wrong, else at the timeout."""
        deadline = self._clock.now() + self._settings.timeout_seconds
        wait = FIRST_WAIT_SECONDS
        while True:
            found, why_not = await self._look(need, deadline)
            if found is not None:
                return found
            if self._clock.now() + wait >= deadline:
                raise PickupFailed(f"it did not come within {self._settings.timeout_seconds:g} s: {why_not}")
            await self._clock.sleep_async(wait)
            wait = min(wait * 2, MAX_WAIT_SECONDS)

    async def _look(self, need: Need, deadline: float) -> tuple[MemoryFile | None, str]:
        """The file from the first place that has it, or why none has. Raises PickupFailed for what is there and wrong.

        Each place has its own share of what is left, so that one that says nothing leaves time for the next.
        """
        reasons = []
        num_places = len(self._settings.urls)
        if self._settings.folder is not None:
            patience = self._left(deadline) / (num_places + 1)
            found, why_not = await _within(patience, self._from_folder(need, self._settings.folder))
            if found is not None:
                return found, ""
            reasons.append(f"{self._settings.folder}: {why_not}")
        for number, url in enumerate(self._settings.urls):
            patience = self._left(deadline) / (num_places - number)
            found, why_not = await _within(patience, self._from_server(need, url, patience))
            if found is not None:
                return found, ""
            reasons.append(f"{url}: {why_not}")
        return None, "; ".join(reasons)

    def _left(self, deadline: float) -> float:
        return max(deadline - self._clock.now(), 0.001)

    async def _from_folder(self, need: Need, folder: Path) -> tuple[MemoryFile | None, str]:
        file = await self._folder_threads.run(copied, folder / need.key / FILE, need)
        return file, "has no such file"

    async def _from_server(self, need: Need, url: str, patience: float) -> tuple[MemoryFile | None, str]:
        """One GET."""
        timeout = httpx.Timeout(patience, connect=min(patience, CONNECT_SECONDS))
        headers = timeout_header(patience)
        try:
            async with (
                self._transfers,
                self._http.stream("GET", f"{url}/embeddings/{need.key}", headers=headers, timeout=timeout) as response,
            ):
                if response.status_code != 200:
                    return None, self._why_not(response.status_code)
                file = await self._memory_threads.run(_memory, need)
                written: Future[None] = self._memory_threads.submit(_write, file, [])
                async for chunks in _batches(response):  # one is written while the next one comes
                    await asyncio.wrap_future(written)
                    written = self._memory_threads.submit(_write, file, chunks)
                await asyncio.wrap_future(written)
        except httpx.HTTPError as error:
            return None, f"{type(error).__name__} {error}".strip()
        return await self._memory_threads.run(_sealed, file, need), ""

    def _why_not(self, status: int) -> str:
        if status in _HOPELESS:
            raise PickupFailed(f"the server answered {status}")
        return "not there" if status == 404 else f"answered {status}"


async def _within(
    seconds: float, look: Coroutine[Any, Any, tuple[MemoryFile | None, str]]
) -> tuple[MemoryFile | None, str]:
    try:
        async with asyncio.timeout(seconds):
            return await look
    except TimeoutError:
        return None, f"not done after {seconds:.3g} s"


async def _batches(response: httpx.Response) -> AsyncIterator[list[bytes]]:
    """The body in pieces that are worth a thread's turn."""
    chunks: list[bytes] = []
    num_bytes = 0
    async for chunk in response.aiter_bytes():
        chunks.append(chunk)
        num_bytes += len(chunk)
        if num_bytes >= _BATCH_BYTES or len(chunks) >= _BATCH_CHUNKS:
            yield chunks
            chunks, num_bytes = [], 0
    if chunks:
        yield chunks


def copied(path: Path, need: Need) -> MemoryFile | None:
    """A file of shared storage, sealed and checked; None when it is not there. Raises PickupFailed. Blocks."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise PickupFailed(f"shared storage cannot be read: {error}") from error
    try:
        file = _memory(need)
        with _closing_what_fails(file, "shared storage cannot be read"):
            file.copy_from(descriptor)
    finally:
        os.close(descriptor)
    return _sealed(file, need)


def _memory(need: Need) -> MemoryFile:
    try:
        return MemoryFile(need.max_bytes)
    except OSError as error:
        raise PickupFailed(f"{_NO_MEMORY}: {error}") from error


def _write(file: MemoryFile, chunks: list[bytes]) -> None:
    with _closing_what_fails(file, _NO_MEMORY):
        file.write(*chunks)


def _sealed(file: MemoryFile, need: Need) -> MemoryFile:
    """The file when it is what was asked for. Raises PickupFailed when it is not. Blocks."""
    with _closing_what_fails(file, _NO_MEMORY):
        file.seal()
        if (wrong := what_is_wrong(file, need)) is not None:
            raise InvalidResponse(wrong)
    return file


@contextmanager
def _closing_what_fails(file: MemoryFile, what: str) -> Iterator[None]:
    """Turn errors into PickupFailed. Those remember their frames, so the memory is let go of here."""
    try:
        yield
    except InvalidResponse as error:
        file.close()
        raise PickupFailed(f"what came is no embedding for this request: {error}") from None
    except OSError as error:
        file.close()
        raise PickupFailed(f"{what}: {error}") from error


def what_is_wrong(file: MemoryFile, need: Need) -> str | None:
    """None when the file may be shown to the engine. Text, since an error would keep the memory that it is about."""
    try:
        _check(file, need)
    except (InvalidResponse, InvalidEmbedding) as error:
        return str(error)
    return None


def _check(file: MemoryFile, need: Need) -> None:
    """Raises InvalidResponse or InvalidEmbedding unless the file holds these rows for this key and grid."""
    tensors, metadata = file.read()
    if TENSOR not in tensors:
        raise InvalidResponse(f"the file lacks {TENSOR}; it has {sorted(tensors)[:8]}")
    if metadata.get("key") != need.key:
        raise InvalidResponse(f"the file holds the key {str(metadata.get('key'))[:80]}")
    grid = tensors.get("grid_thw")
    if grid is None or grid.shape != (1, 3) or validate_grid(grid[0].tolist(), need.merge_size) != need.grid:
        raise InvalidEmbedding(f"the request's grid is {list(need.grid)}, the file's another")
    validate_embedding(tensors[TENSOR], need.grid, merge_size=need.merge_size, width=need.width)
