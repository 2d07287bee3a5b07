"""One embedding by its key: from shared storage, else from a foveal server, waiting while it is not there yet.

What comes back has been checked against what vLLM expects: nothing else is ever shown to the engine. No vLLM here.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass

import httpx

from foveal_client._ec.memory import TENSOR, MemoryFile
from foveal_client._ec.settings import PickupSettings
from foveal_client._errors import InvalidResponse
from foveal_client._handover import Grid, InvalidEmbedding, validate_embedding, validate_grid
from foveal_client._requests import timeout_header
from foveal_client._retry import Clock

FILE = "encoder_cache.safetensors"
CONNECT_SECONDS = 5.0
FIRST_WAIT_SECONDS = 0.02
MAX_WAIT_SECONDS = 0.5
_MAX_ITEM_BYTES = 4
_HEADER_BYTES = 64 << 10
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
    """Fetches on the loop that its coroutines run on; at most `max_connections` transfers at one time."""

    def __init__(self, settings: PickupSettings, http: httpx.AsyncClient, clock: Clock | None = None) -> None:
        self._settings = settings
        self._http = http
        self._clock = clock or Clock()
        self._transfers = asyncio.Semaphore(settings.max_connections)

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
        """The file, or why it is not there yet. Raises PickupFailed for what is there and wrong."""
        file = MemoryFile(need.max_bytes)
        try:
            async with self._transfers:
                why_not = await self._fill(file, need, deadline)
            if why_not is not None:
                file.close()
                return None, why_not
            file.seal()
            if (wrong := await asyncio.to_thread(what_is_wrong, file, need)) is not None:
                raise PickupFailed(f"what came is no embedding for this request: {wrong}")
        except InvalidResponse as error:
            file.close()
            raise PickupFailed(f"what came is no embedding for this request: {error}") from None
        except PickupFailed:
            file.close()
            raise
        return file, ""

    async def _fill(self, file: MemoryFile, need: Need, deadline: float) -> str | None:
        """Read the file from the first place that has it; None when done, else why not."""
        reasons = []
        if self._settings.folder is not None:
            if await asyncio.to_thread(self._copy, file, need.key):
                return None
            reasons.append(f"{self._settings.folder} has no such file")
        for url in self._settings.urls:
            why_not = await self._download(file, f"{url}/embeddings/{need.key}", deadline)
            if why_not is None:
                return None
            reasons.append(f"{url}: {why_not}")
        return "; ".join(reasons)

    def _copy(self, file: MemoryFile, key: str) -> bool:
        """From shared storage; False when it is not there."""
        assert self._settings.folder is not None
        try:
            descriptor = os.open(self._settings.folder / key / FILE, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise PickupFailed(f"shared storage cannot be read: {error}") from error
        try:
            file.copy_from(descriptor)
        except OSError as error:
            raise PickupFailed(f"shared storage cannot be read: {error}") from error
        finally:
            os.close(descriptor)
        return True

    async def _download(self, file: MemoryFile, url: str, deadline: float) -> str | None:
        """One GET into `file`; None when done, else why not. Raises PickupFailed for a refusal that will not change."""
        left = max(deadline - self._clock.now(), 0.001)
        timeout = httpx.Timeout(left, connect=min(left, CONNECT_SECONDS))
        try:
            async with (
                asyncio.timeout(left),
                self._http.stream("GET", url, headers=timeout_header(left), timeout=timeout) as response,
            ):
                if response.status_code != 200:
                    return self._why_not(response.status_code)
                async for chunk in response.aiter_bytes():
                    file.write(chunk)
                return None
        except (httpx.HTTPError, TimeoutError) as error:
            if file.num_bytes:
                # Half a file is no beginning of another's: the next try needs a fresh one.
                file.restart()
            return f"{type(error).__name__} {error}".strip()

    def _why_not(self, status: int) -> str:
        if status in _HOPELESS:
            raise PickupFailed(f"the server answered {status}")
        return "not there" if status == 404 else f"answered {status}"


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
