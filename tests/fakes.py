"""Fakes at the two seams, prep and encoder, so that a whole service runs in one process without torch or Pillow.

A fake picture is text: `FAKE 96x64 anything`. Its embedding is made of its bytes, so nobody can get another's
unnoticed. `FAKE BAD` is undecodable.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
from prometheus_client import CollectorRegistry, Gauge

from foveal.engine.admission import Gate
from foveal.engine.cache import EncoderCache
from foveal.engine.demand import Demand
from foveal.engine.engine import Engine, Memory
from foveal.engine.items import Item
from foveal.engine.memory import Allocator
from foveal.errors import FovealError, Undecodable, UnsupportedType
from foveal.families.catalogue import local_spec
from foveal.families.spec import ModelSpec
from foveal.handover.promises import Promises
from foveal.handover.service import Handover, HandoverService
from foveal.ipc.arena import Arena, Block
from foveal.ipc.messages import Prepared, Probed
from foveal.metrics import Metrics
from foveal.types import Output, PixelPlan

NUMPY = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16, "float32": np.float32}
SPEC: ModelSpec = local_spec("builtin:tiny", dummy_weights=True)


def picture(width: int = 96, height: int = 64, text: str = "") -> bytes:
    """A fake picture of that size."""
    return f"FAKE {width}x{height} {text}".encode()


def expected(data: bytes, output: Output, num_tokens: int) -> np.ndarray[Any, Any]:
    """The embedding that the fake encoder makes of these bytes."""
    seed = int.from_bytes(hashlib.sha256(data).digest()[:4], "little")
    shape = SPEC.shape(output, num_tokens)
    return np.random.default_rng(seed).standard_normal(shape, np.float32).astype(NUMPY[output.dtype])


class FakePrep:
    """Reads the size from the text; keeps the bytes in the rows for the encoder."""

    num_ready = 1

    def __init__(self) -> None:
        self.probes = 0

    def shown(self) -> list[dict[str, object]]:
        return []

    async def probe(self, image: Block, demand: Demand) -> Probed:
        self.probes += 1
        data = bytes(image.view)
        if data.startswith(b"FAKE BAD"):
            raise Undecodable("this picture is damaged")
        match = re.match(rb"FAKE (\d+)x(\d+)", data)
        if match is None:
            raise UnsupportedType("no known image format")
        await asyncio.sleep(0)
        return Probed(1, "FAKE", int(match[1]), int(match[2]), 0.001)

    async def prepare(
        self,
        image: Block,
        rows: Block,
        plan: PixelPlan,
        background: tuple[int, int, int],
        demand: Demand,
        decode_work: int,
    ) -> Prepared:
        data = bytes(image.view)
        rows.view[:4] = np.frombuffer(len(data).to_bytes(4, "little"), np.uint8)
        rows.view[4 : 4 + len(data)] = np.frombuffer(data, np.uint8)
        await asyncio.sleep(0)
        return Prepared(1, 0.001)


class FakePool:
    """Encodes when `gate` is open; counts what it was given."""

    is_ready, is_hopeful, num_ready = True, True, 1

    def __init__(self) -> None:
        self.workers: list[Any] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.encoded: list[bytes] = []
        self.waiting = 0
        self.error: FovealError | None = None

    def waits_for(self) -> str:
        return "nothing"

    def expect(self, num_tokens: int, num_patches: int, demand: Demand) -> AbstractContextManager[None]:
        return nullcontext()

    async def encode(self, item: Item, demand: Demand) -> None:
        self.waiting += 1
        try:
            await self.gate.wait()
        finally:
            self.waiting -= 1
        if self.error is not None:
            raise self.error
        rows = item.rows.view
        data = bytes(rows[4 : 4 + int.from_bytes(bytes(rows[:4]), "little")])
        values = expected(data, item.output, item.num_tokens)
        item.embedding.view[:] = np.frombuffer(values.tobytes(), np.uint8)
        self.encoded.append(data)
        now = time.monotonic()
        demand.stages.record_pack(now - 0.001, now, 0.0, 0.002, 0.0)


def value_of(gauge: Gauge) -> float:
    """What a scrape would see."""
    return next(iter(gauge.collect())).samples[0].value


@dataclass
class FakeService:
    """An engine over fakes, with the parts that tests look at."""

    engine: Engine
    pool: FakePool
    prep: FakePrep
    metrics: Metrics
    handover: Handover
    arenas: dict[str, Arena] = field(default_factory=dict)

    @property
    def service(self) -> HandoverService:
        return HandoverService(self.engine, self.pool, self.prep, self.handover)  # type: ignore[arg-type]


def fake_service(
    max_tokens: int = 100_000,
    max_bytes: int = 64 << 20,
    cache_bytes: int = 8 << 20,
    max_image_tokens: int = 16_384,
    arena_bytes: int = 64 << 20,
    handover: Handover | None = None,
) -> FakeService:
    """A service whose arenas, prep and encoder live in this process. Call it on the loop."""
    metrics = Metrics(CollectorRegistry())
    arenas = {name: Arena(name, arena_bytes) for name in ("images", "rows", "embeddings")}
    cache = EncoderCache(cache_bytes, metrics)
    memory = Memory(
        Allocator(arenas["images"]), Allocator(arenas["rows"]), Allocator(arenas["embeddings"], cache.evict)
    )
    prep, pool = FakePrep(), FakePool()
    gate = Gate(max_tokens, max_bytes, metrics)
    engine = Engine(SPEC, max_image_tokens, gate, cache, memory, prep, pool, metrics, "float32")
    handover = handover or Handover(Promises(8 << 20, 60.0, metrics))
    return FakeService(engine, pool, prep, metrics, handover, arenas)
