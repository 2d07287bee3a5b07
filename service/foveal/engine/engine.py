"""`Engine.encode`: one request's path through cache, single-flight, admission, prep, queue and workers."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from foveal.engine.admission import Gate, Visit
from foveal.engine.cache import EncoderCache, Flights, Key
from foveal.engine.demand import Asker, Demand
from foveal.engine.items import Encoded, Item, Wishes, blame
from foveal.engine.keys import HASH_OFF_LOOP_BYTES, Keys, sha256_of
from foveal.engine.memory import Allocator
from foveal.engine.pixel_plan import plan_within
from foveal.engine.speed import Finds
from foveal.errors import FovealError, InvalidRequest, Overloaded, Unavailable
from foveal.families.spec import ModelSpec
from foveal.ipc.arena import Block
from foveal.ipc.messages import Prepared, Probed
from foveal.metrics import Metrics
from foveal.types import DType, PixelPlan

Color = tuple[int, int, int]
MAX_IMAGES_AT_ONCE = 32
"""Images of one request that are worked on together; the others wait behind them."""


class Prep(Protocol):
    """Where pictures become patch rows; tests put a fake here."""

    async def probe(self, image: Block, demand: Demand) -> Probed:
        """Format and upright size; raises the refusal."""

    async def prepare(
        self, image: Block, rows: Block, plan: PixelPlan, background: Color, demand: Demand, decode_work: int
    ) -> Prepared:
        """Write the patch rows; raises the refusal. `decode_work` is what the header told."""


class Encoder(Protocol):
    """Where patch rows become embeddings; tests put a fake here."""

    def expect(self, num_tokens: int, num_patches: int, demand: Demand) -> AbstractContextManager[None]:
        """Count an image that will come; raises TooLarge, DeadlineExceeded or Overloaded if it cannot be in time."""

    async def encode(self, item: Item, demand: Demand) -> None:
        """Write the embedding; raises Unavailable, DeadlineExceeded or `internal`."""

    @property
    def is_hopeful(self) -> bool:
        """False when no worker is there nor expected back."""


@dataclass(frozen=True)
class Memory:
    """The three arenas."""

    images: Allocator
    rows: Allocator
    embeddings: Allocator


class Engine:
    """Everything between a parsed request and its embeddings."""

    def __init__(
        self,
        spec: ModelSpec,
        max_image_tokens: int,
        gate: Gate,
        cache: EncoderCache,
        memory: Memory,
        prep: Prep,
        encoder: Encoder,
        metrics: Metrics,
        compute_dtype: DType,
    ) -> None:
        self._keys = Keys(spec, compute_dtype)
        self.spec, self.gate, self.cache = spec, gate, cache
        self.max_image_tokens = max_image_tokens
        self.memory, self._prep, self._encoder, self._metrics = memory, prep, encoder, metrics
        self._flights: Flights[Encoded] = Flights()
        self._finds = Finds()

    def refuse_unread(self, visit: Visit) -> None:
        """Before a body is read: raise Overloaded where none would be let in, and hardly any was found known lately."""
        if visit.may_expect() or self._finds.is_worth_reading():
            return
        self._metrics.outcomes["rejected"].inc()
        raise self.gate.overloaded(1, visit.caller)

    def expect(self, images: Sequence[object], wishes: Wishes, visit: Visit, param: str = "images") -> None:
        """Before anything is begun, and without awaiting: hold room for an image, or raise Overloaded where there is
        none and an image is neither in the cache nor under way. What takes long to find out is found out later.
        """
        if visit.expect():
            return
        for i, image in enumerate(images):
            if not isinstance(image, bytes) or len(image) > HASH_OFF_LOOP_BYTES:
                return
            key = self._keys.of(hashlib.sha256(image).hexdigest(), wishes, self.max_image_tokens)
            if key not in self.cache and key not in self._flights:
                self._metrics.outcomes["rejected"].inc()
                raise self._full(visit).at(f"{param}[{i}]")

    async def encode(
        self, images: Sequence[bytes], wishes: Wishes, visit: Visit, param: str = "images"
    ) -> list[Encoded]:
        """The embeddings of a request's images, in order.

        The first image that fails fails the request, and is named in the error as `param[i]`; what the others have
        under way ends with it. Raises any FovealError.
        """
        seats = asyncio.Semaphore(MAX_IMAGES_AT_ONCE)
        if len(images) == 1:
            return [await self._one(0, param, images[0], wishes, visit, seats)]
        work = (self._one(i, param, image, wishes, visit, seats) for i, image in enumerate(images))
        tasks = [asyncio.create_task(one) for one in work]
        try:
            return await asyncio.gather(*tasks)
        finally:
            unfinished = [task for task in tasks if not task.done()]
            for task in unfinished:
                task.cancel()
            if unfinished:
                await asyncio.wait(unfinished)
            del tasks, unfinished  # no cycle with an error's traceback: what it holds is free at once

    async def find(self, key: str, visit: Visit) -> Encoded | None:
        """The embedding of a content key from the cache or, when it is ready, from its flight; None if in neither.

        Raises what the flight failed with, when that was no fault of the image.
        """
        if (hit := self.cache.peek(key)) is not None:
            return hit
        try:
            return await self._flights.wait(key, Asker(visit.caller, 0, visit.deadline))
        except InvalidRequest:  # told to whoever sent the image
            return None

    async def _one(
        self, i: int, param: str, image: bytes, wishes: Wishes, visit: Visit, seats: asyncio.Semaphore
    ) -> Encoded:
        outcome = "failed"
        try:
            async with seats:
                encoded, outcome = await self._hit_or_encode(i, image, wishes, visit)
            return encoded
        except FovealError as error:
            error = blame(error, wishes)  # in the same name, which is let go of: no cycle with its traceback
            outcome = "failed" if error.status in (500, 504) else "rejected"
            raise error.at(f"{param}[{i}]") from None
        except asyncio.CancelledError:
            outcome = "cancelled"
            raise
        finally:
            self._metrics.outcomes[outcome].inc()

    async def _hit_or_encode(self, i: int, image: bytes, wishes: Wishes, visit: Visit) -> tuple[Encoded, str]:
        digest = await sha256_of(image)
        key = self._keys.of(digest, wishes, self.max_image_tokens)
        joins = key in self._flights
        if (joins or key in self.cache) and not visit.may_expect():
            self._finds.note(found=True)
        if (hit := self.cache.get(key)) is not None:
            visit.expect_no_more()
            visit.hold_answer(hit.embedding)
            return hit.as_hit(), "cache_hit"
        began = time.monotonic()
        asker = Asker(visit.caller, wishes.priority, visit.deadline)
        if joins:
            visit.expect_no_more()
            visit.stages[i] = self._flights.stages_of(key)

        def start(demand: Demand) -> Awaitable[Encoded]:
            visit.stages[i] = demand.stages
            return self._encode(key, digest, image, wishes, visit, demand)

        encoded = await self._flights.join(key, asker, start)
        visit.hold_answer(encoded.embedding)
        if joins:
            return encoded.as_joined(time.monotonic() - began), "coalesced"
        return encoded, "encoded"

    async def _encode(
        self, key: Key, digest: str, image: bytes, wishes: Wishes, visit: Visit, demand: Demand
    ) -> Encoded:
        """One flight: probe, admission, prep, queue, worker, cache."""
        stages = demand.stages
        stages.current = "probe"
        if not self._encoder.is_hopeful:
            raise Unavailable("no worker is ready; see /ready, and try again", retry_after=1.0)
        if not visit.expect():
            raise self._full(visit)
        block = await self.memory.images.block(len(image))
        block.view[:] = np.frombuffer(image, np.uint8)
        probed = await self._prep.probe(block, demand)
        stages.record("probe", probed.seconds)
        stages.current = "admission"
        plan = plan_within(self.spec, probed, wishes, self.max_image_tokens)
        grid, num_tokens = plan.grid, plan.num_tokens
        rows_bytes = grid.num_patches * plan.row_bytes
        embedding_bytes = self.spec.embedding_bytes(wishes.output, num_tokens)
        in_time = self._encoder.expect(num_tokens, grid.num_patches, demand)
        with in_time, await visit.admit(num_tokens, rows_bytes, embedding_bytes):
            rows = await self.memory.rows.block(rows_bytes)
            stages.current = "prep"
            prepared = await self._prep.prepare(block, rows, plan, wishes.background, demand, probed.work)
            del block
            stages.record("prep", prepared.seconds)
            stages.current = "queue"
            embedding = await self.memory.embeddings.block(embedding_bytes)
            item = Item(grid, num_tokens, rows, embedding, wishes.output)
            await self._encoder.encode(item, demand)
            stages.current = ""
        self.gate.speed.count(num_tokens)
        encoded = Encoded(
            embedding=embedding,
            shape=self.spec.shape(wishes.output, num_tokens),
            output=wishes.output,
            grid=grid,
            num_tokens=num_tokens,
            image_size=(probed.width, probed.height),
            sha256=digest,
            key=key,
            seconds=stages.seconds(),
        )
        self.cache.put(key, encoded)
        return encoded

    def _full(self, visit: Visit) -> Overloaded:
        self._finds.note(found=False)
        return self.gate.overloaded(1, visit.caller)
