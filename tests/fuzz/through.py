"""Spoiled files through real prep processes, limits and watchdog on, the way the api gives them work."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from prometheus_client import CollectorRegistry

from foveal.engine.child import Program
from foveal.engine.demand import Asker, Demand
from foveal.engine.memory import Allocator
from foveal.engine.prep import PrepPool
from foveal.errors import FovealError
from foveal.ipc.arena import Arena
from foveal.metrics import Metrics
from foveal.settings import process_environment
from tests.fuzz.inside import CALLERS_FAULTS, MAX_PIXELS, PLAN, WHITE, Finding
from tests.fuzz.mutate import spoiled
from tests.fuzz.seeds import seeds

PROCESSES = 2
TIMEOUT_SECONDS = 20.0
MAX_GROWTH_BYTES = 64 << 20


class Through:
    """A pool of prep processes and the arenas that they share."""

    def __init__(self, seed: int) -> None:
        self._seed, self._files = seed, list(seeds().values())
        self._images, self._rows = Arena("images", 64 << 20), Arena("rows", 64 << 20)
        arenas = {"images": self._images, "rows": self._rows}
        program = Program("foveal.vision", arenas, process_environment(), "error", "text")
        self._pool = PrepPool(PROCESSES, program, MAX_PIXELS, TIMEOUT_SECONDS, Metrics(CollectorRegistry()))

    async def run(self, numbers: Sequence[int], told: Callable[[], object] = lambda: None) -> Counter[str]:
        """Answers by kind; raises Finding. `told` is called once an input."""
        running = asyncio.create_task(self._pool.run())
        try:
            answers = Counter[str]()
            half = max(1, len(numbers) // 2)
            answers += await self._some(numbers[:half], told)
            before = self._resident()
            answers += await self._some(numbers[half:], told)
            self._check_grown(before)
            return answers
        finally:
            await self._pool.stop()
            await running

    async def _some(self, numbers: Sequence[int], told: Callable[[], object]) -> Counter[str]:
        """A few at once, so that no process waits for another's answer."""
        images, rows = Allocator(self._images), Allocator(self._rows)
        left, answers = iter(numbers), Counter[str]()

        async def work() -> None:
            for number in left:
                answers[await self._answer(number, images, rows)] += 1
                told()

        async with asyncio.TaskGroup() as group:
            for _ in range(2 * PROCESSES):
                group.create_task(work())
        return answers

    async def _answer(self, number: int, images: Allocator, rows: Allocator) -> str:
        data = spoiled(self._files, self._seed, number)
        block, target = await images.block(len(data)), await rows.block(PLAN.num_patches * PLAN.row_bytes)
        block.view[:] = np.frombuffer(data, np.uint8)
        demand = Demand(Asker())
        try:
            await self._pool.probe(block, demand)
            await self._pool.prepare(block, target, PLAN, WHITE, demand)
        except FovealError as error:
            if error.code not in CALLERS_FAULTS:
                raise Finding(f"input {number} was answered {error.code}: {error.message}") from None
            if "decoding this image" in error.message:
                raise Finding(f"input {number} ended its process: {error.message}") from None
            return error.code
        return "prepared"

    def _resident(self) -> dict[object, int]:
        pages = {
            w["pid"]: Path(f"/proc/{w['pid']}/statm").read_text().split() for w in self._pool.shown() if w["ready"]
        }
        return {pid: (int(fields[1]) - int(fields[2])) * 4096 for pid, fields in pages.items()}

    def _check_grown(self, before: dict[object, int]) -> None:
        for pid, resident in self._resident().items():
            grown = resident - before.get(pid, resident)
            if grown > MAX_GROWTH_BYTES:
                raise Finding(f"a prep process grew by {grown} bytes")
