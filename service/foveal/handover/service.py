"""A service whose embeddings LLM servers can fetch: the engine's parts, promises, and shared storage if it is set."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from foveal.engine import assembly
from foveal.engine.assembly import WORKER, Service
from foveal.engine.items import Encoded
from foveal.errors import ConfigurationError, FovealError, InvalidRequest, Unavailable
from foveal.families.spec import ModelSpec
from foveal.handover.ec_file import ec_file
from foveal.handover.promises import Promise, Promises
from foveal.handover.storage import SharedStorage
from foveal.metrics import Metrics
from foveal.settings import Settings

NOTHING_HELD = "this server holds nothing for LLM servers: --handover-bytes is 0 and --ec-shared-storage is not set"
TICK_SECONDS = 0.5
"""Between looks at what has had its time. A look-up never finds what is overdue, however long ago the last look was."""
CLEAN_SECONDS = 5.0
"""Between looks at old files."""


class Handover:
    """What is held for LLM servers."""

    def __init__(self, promises: Promises, storage: SharedStorage | None = None) -> None:
        self.promises, self.storage = promises, storage
        self._changed = asyncio.Event()

    @classmethod
    def of(cls, settings: Settings, metrics: Metrics) -> Handover:
        """As the settings say."""
        promises = Promises(settings.handover_bytes, settings.handover_seconds, metrics)
        if settings.ec_shared_storage is None:
            return cls(promises)
        bounds = (settings.ec_shared_storage_bytes, settings.ec_shared_storage_seconds, settings.handover_seconds)
        return cls(promises, SharedStorage(settings.ec_shared_storage, *bounds, metrics))

    @property
    def is_on(self) -> bool:
        """False where nothing can be held."""
        return self.promises.max_bytes > 0 or self.storage is not None

    def shown(self) -> dict[str, Any]:
        """For /info."""
        return {"promises": self.promises.shown(), "shared_storage": self.storage.shown() if self.storage else None}

    async def run(self) -> None:
        """Drop what has had its time, for ever."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._expire())
            if self.storage is not None:
                group.create_task(self._clean(self.storage))

    async def _expire(self) -> None:
        while True:
            self.promises.expire()
            self._changed.set()
            await asyncio.sleep(TICK_SECONDS)

    async def _clean(self, storage: SharedStorage) -> None:
        while True:
            await storage.clean()
            await asyncio.sleep(CLEAN_SECONDS)

    def fetched(self, promise: Promise) -> None:
        """A promised embedding was sent whole."""
        self.promises.fetched(promise)
        self._changed.set()

    async def until_kept(self) -> None:
        """Wait until no promise is open; `run` must be running."""
        while len(self.promises):
            self._changed.clear()
            await self._changed.wait()


@dataclass(frozen=True)
class HandoverService(Service):
    """The running parts of one server."""

    handover: Handover

    async def run(self) -> None:
        """Keep all children running, and what is held in bounds, until `stop`."""
        async with asyncio.TaskGroup() as group:
            group.create_task(super().run())
            group.create_task(self.handover.run())

    async def until_idle(self) -> None:
        """Wait until no request is open and no promise; the gate must be shut, so that no new one is given."""
        await self.engine.gate.until_empty()
        await self.handover.until_kept()
        await self.engine.gate.until_empty()  # the fetches

    async def stop(self) -> None:
        """End all children; let files be finished."""
        await super().stop()
        if self.handover.storage is not None:
            await self.handover.storage.close()


async def make(
    settings: Settings, spec: ModelSpec, metrics: Metrics, environment: dict[str, str], worker: str = WORKER
) -> HandoverService:
    """All parts, not yet running; `worker` is the module that workers run. Raises ConfigurationError."""
    parts = assembly.assemble(settings, spec, metrics, environment, worker)
    handover = Handover.of(settings, metrics)
    # what has had its time makes room for new embeddings before the encoder cache must
    parts.engine.memory.embeddings.ask_first(handover.promises.expire)
    if handover.storage is not None:
        try:
            await handover.storage.open()
        except Unavailable as error:
            raise ConfigurationError(f"--ec-shared-storage {settings.ec_shared_storage}: {error.message}") from None
    return HandoverService(parts.engine, parts.pool, parts.prep, handover)


async def hold(service: HandoverService, encoded: Sequence[Encoded], names: Sequence[str] | None = None) -> None:
    """Promise and publish all of a request's images, or none: raises Overloaded, TooLarge, Unavailable or,
    where nothing is ever held, InvalidRequest.

    Each is held under its content key, or under its name of `names`: 64 hex digits, and no caller's free choice.
    """
    promises, storage = service.handover.promises, service.handover.storage
    if not service.handover.is_on:
        raise InvalidRequest(NOTHING_HELD)
    if promises.max_bytes:
        promises.refuse_unless_fits(encoded, names)  # before anything is written
    if storage is not None:
        named = dict(zip(names or [one.key for one in encoded], encoded, strict=True))
        files = (storage.publish(name, one.key, ec_file(service.engine.spec, one, name)) for name, one in named.items())
        outcomes = await asyncio.gather(*files, return_exceptions=True)
        if failures := [outcome for outcome in outcomes if isinstance(outcome, BaseException)]:
            if isinstance(failures[0], FovealError):
                promises.count_refused(len(named))
            raise failures[0]
    if promises.max_bytes:
        promises.promise(encoded, names)
