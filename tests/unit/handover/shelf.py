"""A shared storage in a folder, with its clock."""

from __future__ import annotations

from pathlib import Path

from prometheus_client import CollectorRegistry

from foveal.handover.ec_file import ec_file
from foveal.handover.folder import FILE
from foveal.handover.storage import SharedStorage
from foveal.ipc.arena import Arena
from foveal.metrics import Metrics
from tests.fakes import SPEC
from tests.unit.handover.holding import FakeClock, encoded, key_of

ARENA = Arena("test", 1 << 22)
SIZE = sum(len(buffer) for buffer in ec_file(SPEC, encoded(ARENA, "a", 4096)))
KEPT, PROMISED = 600.0, 120.0


class Shelf:
    """A storage in a folder, with its clock."""

    def __init__(
        self,
        folder: Path,
        max_files: int = 3,
        seconds: float = KEPT,
        promised_seconds: float = PROMISED,
        clock: FakeClock | None = None,
    ) -> None:
        self.folder, self.clock, self.metrics = folder, clock or FakeClock(), Metrics(CollectorRegistry())
        # half a file more, since headers differ by a digit or two
        max_bytes = max_files * SIZE + SIZE // 2
        self.storage = SharedStorage(folder, max_bytes, seconds, promised_seconds, self.metrics, self.clock)

    async def publish(self, name: object, size: int = 4096, content: object = None) -> None:
        one = encoded(ARENA, name if content is None else content, size)
        await self.storage.publish(key_of(name), one.key, ec_file(SPEC, one, key_of(name)))

    def path(self, name: object) -> Path:
        return self.folder / key_of(name) / FILE

    def content(self, name: object, size: int = 4096) -> bytes:
        """What `publish` writes."""
        return b"".join(map(bytes, ec_file(SPEC, encoded(ARENA, name, size), key_of(name))))

    def names(self) -> set[str]:
        return {place.name for place in self.folder.iterdir() if (place / FILE).exists()}


def keys_of(text: str) -> set[str]:
    return {key_of(name) for name in text}
