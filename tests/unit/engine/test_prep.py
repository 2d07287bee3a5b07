"""What a prep process is given, and when it is ended."""

from __future__ import annotations

import asyncio
import time

import pytest
from prometheus_client import CollectorRegistry

from foveal.engine.child import Program
from foveal.engine.decode_rate import SHARE, DecodeRate
from foveal.engine.demand import Asker, Demand
from foveal.engine.memory import Allocator
from foveal.engine.prep import PrepPool
from foveal.engine.prep_queue import LARGE_WORK
from foveal.engine.pulse import WATCH_SECONDS, Pulse, Vitals
from foveal.errors import DeadlineExceeded
from foveal.ipc.arena import Arena, Block
from foveal.ipc.messages import ChildReady, Prepare, Prepared, Probe, Probed
from foveal.metrics import Metrics
from foveal.types import PixelPlan

PLAN = PixelPlan(28, 28, 14, 2)


class Clock:
    """A time.monotonic that is set."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


class FakeChild:
    """A process that is never started: what it was sent, and whether it was killed."""

    name, pid, restarts = "prep-0", 1, 0

    def __init__(self, clock: Clock) -> None:
        self.pulse = Pulse(clock.monotonic, lambda pid: Vitals("R", 0.0))
        self.pulse.began(1)
        self.sent: list[Probe | Prepare] = []
        self.kills = 0

    def send(self, message: Probe | Prepare) -> None:
        self.sent.append(message)

    def kill(self) -> None:
        self.kills += 1


class Pooled:
    """A pool whose processes are fakes that are ready."""

    def __init__(self, size: int, block: Block) -> None:
        self.pool = PrepPool(size, Program("nothing", {}, {}), 1000, 20.0, Metrics(CollectorRegistry()))
        self.clock = Clock()
        self.block, self.children = block, [FakeChild(self.clock) for _ in range(size)]
        for worker, child in zip(self.pool._workers, self.children, strict=True):
            worker.child = child  # type: ignore[assignment]
            worker.started()
            worker.received(ChildReady())

    def prepare(self, work: int, deadline: float | None = None, caller: str = "") -> asyncio.Task[Prepared]:
        demand = Demand(Asker(caller, deadline=deadline))
        return asyncio.create_task(self.pool.prepare(self.block, self.block, PLAN, (0, 0, 0), demand, work))

    def let_pass(self, seconds: float) -> None:
        """Time goes on, looked at as often as the watchdog looks."""
        for _ in range(round(seconds / WATCH_SECONDS)):
            self.clock.now += WATCH_SECONDS
            for child in self.children:
                child.pulse.look()

    def probe(self) -> asyncio.Task[Probed]:
        return asyncio.create_task(self.pool.probe(self.block, Demand(Asker())))

    def answer(self, place: int, message: Probed | Prepared) -> None:
        self.pool._workers[place].received(message)

    @property
    def sent(self) -> list[list[type]]:
        return [[type(message) for message in child.sent] for child in self.children]


@pytest.fixture
async def block() -> Block:
    return await Allocator(Arena("images", 1 << 16)).block(16)


async def turn() -> None:
    """Let everything that can go on go on."""
    for _ in range(5):
        await asyncio.sleep(0)


async def end(*tasks: asyncio.Task) -> None:  # type: ignore[type-arg]
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


async def test_sixteen_large_pictures_leave_a_process_to_the_headers_and_to_small_ones(block: Block) -> None:
    pooled = Pooled(2, block)
    await turn()
    bombs = [pooled.prepare(LARGE_WORK) for _ in range(16)]
    await turn()
    assert sorted(pooled.sent) == [[], [Prepare]]
    free = pooled.sent.index([])
    header = pooled.probe()
    await turn()
    assert pooled.sent[free] == [Probe]
    pooled.answer(free, Probed(1, "PNG", 64, 64, 0.001, 4096))
    small = pooled.prepare((await header).work)
    await turn()
    assert pooled.sent[free] == [Probe, Prepare]
    await end(*bombs, small)


async def test_whose_header_was_read_goes_before_the_next_large_one_also_with_a_single_process(block: Block) -> None:
    pooled = Pooled(1, block)
    await turn()

    async def good() -> Prepared:
        probed = await pooled.pool.probe(block, Demand(Asker()))
        return await pooled.pool.prepare(block, block, PLAN, (0, 0, 0), Demand(Asker()), probed.work)

    bombs = [pooled.prepare(LARGE_WORK) for _ in range(4)]
    await turn()
    task = asyncio.create_task(good())
    await turn()
    pooled.answer(0, Prepared(1, 1.0))  # the first large one
    await turn()
    pooled.answer(0, Probed(2, "PNG", 64, 64, 0.001, 4096))
    await turn()
    assert pooled.sent == [[Prepare, Probe, Prepare]]
    pooled.answer(0, Prepared(3, 0.5))
    assert (await task).seconds == 0.5
    await end(*bombs)


async def test_what_cannot_be_decoded_in_time_is_told_so_and_never_sent(block: Block) -> None:
    pooled = Pooled(1, block)
    pooled.pool.decode_rate.note(LARGE_WORK, 4.0)
    least = 4.0 * SHARE
    await turn()
    now = time.monotonic()
    late, ahead = pooled.prepare(LARGE_WORK, now + least / 2), pooled.prepare(LARGE_WORK, now + 100)
    await turn()
    with pytest.raises(DeadlineExceeded):
        await late
    assert pooled.sent == [[Prepare]]
    await end(ahead)


async def test_a_decode_that_nobody_waits_for_is_ended_when_it_has_lasted_as_long_as_a_start(block: Block) -> None:
    pooled = Pooled(1, block)
    worker, child = pooled.pool._workers[0], pooled.children[0]
    worker.started()
    worker.is_ready = False
    pooled.let_pass(2.0)  # the start
    worker.received(ChildReady())
    await turn()
    task = pooled.prepare(LARGE_WORK)
    await turn()
    pooled.let_pass(10.0)
    worker.end_if_late(20.0)
    assert child.kills == 0  # somebody waits
    await end(task)
    worker.end_if_late(20.0)
    pooled.let_pass(2.0)
    worker.end_if_late(20.0)
    assert child.kills == 0
    pooled.let_pass(0.5)
    worker.end_if_late(20.0)
    worker.end_if_late(20.0)
    assert child.kills == 1
    worker.lost(-9)
    assert pooled.pool.queue._large_in_hand == 0


def test_the_decode_rate_tells_a_quarter_of_what_pictures_took_of_late() -> None:
    rate = DecodeRate()
    assert rate.least_seconds(10**9) == 0.0
    rate.note(1000, 2.0)
    assert rate.least_seconds(500) == pytest.approx(SHARE)
    for _ in range(500):
        rate.note(1000, 4.0)
    assert rate.least_seconds(1000) == pytest.approx(4 * SHARE)


async def test_small_pictures_go_before_the_huge_ones_of_another_caller(block: Block) -> None:
    """Turns count the work that headers tell, which is what decoding costs."""
    pooled = Pooled(1, block)
    await turn()
    huge = [pooled.prepare(LARGE_WORK - 10_000, caller="huge") for _ in range(3)]
    small = [pooled.prepare(50_000, caller="small") for _ in range(20)]
    await turn()
    taken = [task.caller for _ in range(22) if (task := pooled.pool.queue.take(1)) is not None]
    assert taken == [*["small"] * 20, *["huge"] * 2]  # one was in hand before any other came
    await end(*huge, *small)
