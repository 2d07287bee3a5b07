"""Prep processes of a real server and of a real pool: what they may not do, and whom it costs when they die."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import re
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from prometheus_client import CollectorRegistry
from pydantic import ValidationError

from foveal.engine.child import Program
from foveal.engine.demand import Asker, Demand
from foveal.engine.prep import PrepPool
from foveal.errors import TooLarge, Unavailable, Undecodable
from foveal.ipc.arena import Arena, Block
from foveal.metrics import Metrics
from foveal.settings import Settings, process_environment
from foveal.types import PixelPlan

from .conftest import Running

WHITE = (255, 255, 255)
PLAN = PixelPlan(64, 64, 16, 2)
MAX_PIXELS = 64_000_000


def limits(pid: object) -> dict[str, str]:
    """Hard limits of a process, by name."""
    lines = Path(f"/proc/{pid}/limits").read_text().splitlines()[1:]
    return {found[1].strip(): found[3] for line in lines if (found := re.match(r"(.{26})(\S+)\s+(\S+)", line))}


def test_the_prep_processes_of_a_server_can_open_nothing_and_dump_nothing(server: Running) -> None:
    for worker in server.info()["prep_workers"]:
        found = limits(worker["pid"])
        assert found["Max open files"] == "0" and found["Max core file size"] == "0"
        assert found["Max file size"] == "0"
        mapped = int(Path(f"/proc/{worker['pid']}/statm").read_text().split()[0]) * os.sysconf("SC_PAGESIZE")
        assert 0 < int(found["Max address space"]) - mapped <= 2 << 30


class Pool:
    """A pool over arenas of its own, as the engine uses it."""

    def __init__(self, size: int, memory_bytes: int | None, program: str, timeout: float) -> None:
        self.images, self.rows = Arena("images", 64 << 20), Arena("rows", 1 << 20)
        arenas = {"images": self.images, "rows": self.rows}
        child = Program(program, arenas, process_environment(), "error", "text", memory_bytes)
        self.prep = PrepPool(size, child, MAX_PIXELS, timeout, Metrics(CollectorRegistry()))

    def put(self, image: Image.Image, format: str = "PNG") -> Block:
        stream = io.BytesIO()
        image.save(stream, format)
        block = self.images.allocate(stream.tell())
        block.view[:] = np.frombuffer(stream.getvalue(), np.uint8)
        return block

    @property
    def pid(self) -> int:
        return int(str(self.prep.shown()[0]["pid"]))

    @property
    def restarts(self) -> int:
        return sum(int(str(worker["restarts"])) for worker in self.prep.shown())

    def write(self, text: str) -> Block:
        block = self.images.allocate(len(text))
        block.view[:] = np.frombuffer(text.encode(), np.uint8)
        return block

    async def prepare(self, block: Block, caller: str = "") -> None:
        demand, rows = Demand(Asker(caller)), self.rows.allocate(PLAN.num_patches * PLAN.row_bytes)
        await self.prep.probe(block, demand)
        await self.prep.prepare(block, rows, PLAN, WHITE, demand)


@contextlib.asynccontextmanager
async def running(
    size: int, memory_bytes: int | None = None, program: str = "foveal.vision", patience: float = 60.0
) -> AsyncIterator[Pool]:
    pool = Pool(size, memory_bytes, program, patience)
    task = asyncio.create_task(pool.prep.run())
    try:
        yield pool
    finally:
        await pool.prep.stop()
        await task


async def test_pictures_that_need_too_much_memory_cost_their_callers_and_nobody_else() -> None:
    async with running(2, 32 << 20) as pool:
        good, large = pool.put(Image.new("RGB", (300, 200))), pool.put(Image.new("RGB", (6000, 6000)))
        calls = [pool.prepare(large if i % 4 else good) for i in range(16)]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(answer) for answer in answers[::4]] == [type(None)] * 4
        for answer in [a for i, a in enumerate(answers) if i % 4]:
            assert isinstance(answer, TooLarge) and str(32 << 20) in answer.message
        assert [worker["restarts"] for worker in pool.prep.shown()] == [0, 0]


async def test_a_process_that_is_killed_from_outside_costs_nobody_an_answer() -> None:
    async with running(1, 1 << 30) as pool:
        good = pool.put(Image.new("RGB", (300, 200)))
        await pool.prepare(good)
        os.kill(pool.pid, signal.SIGSTOP)
        unlucky, waiting = (asyncio.create_task(pool.prepare(good)) for _ in range(2))
        await asyncio.sleep(0)  # the first is now in the hands of the process, the second behind it
        os.kill(pool.pid, signal.SIGKILL)
        await unlucky
        await waiting
        assert pool.restarts == 1


async def test_a_picture_that_ends_a_process_once_has_a_second_try(tmp_path: Path) -> None:
    async with running(1, program="tests.system.fatal_prep") as pool:
        await pool.prepare(pool.write(f"SIGKILL {tmp_path / 'once'}"))
        assert pool.restarts == 1


@pytest.mark.parametrize(("ends", "told"), [("SIGKILL", TooLarge), ("SIGSEGV", Undecodable), ("SIGABRT", Undecodable)])
async def test_a_picture_that_ends_two_processes_is_refused_and_costs_nobody_else(ends: str, told: type) -> None:
    async with running(1, program="tests.system.fatal_prep") as pool:
        guilty, innocent = pool.prepare(pool.write(ends)), pool.prepare(pool.write("fine"))
        answers = await asyncio.gather(guilty, innocent, return_exceptions=True)
        assert isinstance(answers[0], told) and answers[1] is None
        assert pool.restarts == 2


async def test_a_picture_whose_process_is_stopped_once_has_a_second_try_and_twice_is_no_fault_of_its_own(
    tmp_path: Path,
) -> None:
    async with running(1, program="tests.system.fatal_prep", patience=1.0) as pool:
        await pool.prepare(pool.write(f"SIGSTOP {tmp_path / 'once'}"))
        with pytest.raises(Unavailable):
            await pool.prepare(pool.write("SIGSTOP"))
        assert pool.restarts == 3


async def test_a_picture_that_hangs_a_process_has_no_second_try_and_costs_nobody_else() -> None:
    async with running(1, program="tests.system.fatal_prep", patience=1.0) as pool:
        hanging, innocent = pool.prepare(pool.write("HANG")), pool.prepare(pool.write("fine"))
        answers = await asyncio.gather(hanging, innocent, return_exceptions=True)
        assert isinstance(answers[0], Undecodable) and "too long" in answers[0].message and answers[1] is None
        assert pool.restarts == 1


async def test_second_tries_take_turns_with_other_callers() -> None:
    async with running(1, program="tests.system.fatal_prep") as pool:
        fatal, fine = pool.write("SIGKILL"), pool.write("fine")
        done: list[str] = []

        async def call(caller: str, block: Block) -> None:
            with contextlib.suppress(TooLarge):
                await pool.prepare(block, caller)
            done.append(f"{caller} after {pool.restarts}")

        await asyncio.gather(*(call("bad", fatal) for _ in range(2)), *(call("good", fine) for _ in range(3)))
        assert done == ["good after 1", "bad after 2", "good after 2", "good after 3", "bad after 4"]


def test_a_memory_limit_that_no_large_picture_fits_in_is_refused_at_start() -> None:
    with pytest.raises(ValidationError, match="could never be decoded; raise the one or lower the other"):
        Settings(prep_memory_bytes="100MiB")
    assert Settings(prep_memory_bytes="100MiB", max_image_pixels=10_000_000).prep_memory_bytes == 100 << 20
