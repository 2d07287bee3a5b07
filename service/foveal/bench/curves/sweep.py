"""One server, one kind of pictures: latency of requests that come alone, then of more and more of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from foveal.bench.curves.search import Limit, limit_of, search
from foveal.bench.curves.servers import Running
from foveal.bench.curves.usage import Observer, Usage
from foveal.bench.serve.fleet import HEAD_START_SECONDS, Fleet
from foveal.bench.serve.generator import Shares
from foveal.bench.serve.payloads import Composer, Target
from foveal.bench.serve.pictures import copy_of
from foveal.bench.serve.results import StepResult, Window, percentiles, summarize
from foveal.bench.serve.schedule import Recipe, Schedule, carry
from foveal.bench.serve.wire import Pool
from foveal.errors import ConfigurationError

ALONE, ALONE_SECONDS = 128, 8.0
"""Requests sent one after the other, and the time after which no more of them are."""
LEAST_ALONE = 8
WARM_UP = 16
FIRST_LOAD = 0.5
"""The first rate: requests one after the other would take this share of the time."""
LEAST_TIMEOUT_SECONDS, TIMEOUT_LIMITS = 3.0, 2.0
"""Of requests under load, and at least so many times the limit: what comes later only holds up the next step."""
SETTLE_SECONDS = 15.0
WARM_SHARE = 0.15
"""Of a step: sent and not counted."""
OVERHEAD_SECONDS = 1.5
"""What a step costs beside its own length: handing out, answers of the last requests, the queue's end."""
MAX_CONNECTIONS = 900
BEYOND, MAX_BEYOND = 2.5, 2
"""Times the highest rate, once the knee is known: a server without batches is late long before it is full."""


@dataclass(frozen=True)
class Pace:
    """How long it may take, and how many processes send what."""

    step_seconds: float
    sweep_seconds: float
    num_processes: int
    seed: int
    is_mixed: bool
    """True if pictures differ in size."""

    @property
    def max_steps(self) -> int:
        """Steps that the time allows."""
        return max(1, int(self.sweep_seconds / (self.step_seconds + OVERHEAD_SECONDS)))


@dataclass(frozen=True)
class Step:
    """One rate."""

    rate: float
    result: StepResult
    usage: Usage

    @property
    def p99_ms(self) -> float:
        """Of the answers that came."""
        return self.result.latency_ms["p99"]

    @property
    def keeps_up(self) -> bool:
        """True if it answered as fast as it was asked."""
        return self.result.keeps_up

    @property
    def error_share(self) -> float:
        """Requests without an answer."""
        return self.result.error_share


@dataclass(frozen=True)
class Curve:
    """What one server did."""

    server: str
    alone_ms: dict[str, float]
    limit: Limit
    steps: list[Step]
    knee: int | None
    """Place of the highest rate that held; None if none did."""

    @property
    def most(self) -> float:
        """Answers a second, at whatever latency."""
        return max(step.result.answered_per_second for step in self.steps)

    @property
    def held(self) -> Step | None:
        """The step at the knee."""
        return None if self.knee is None else self.steps[self.knee]


class Sweep:
    """Sends to one running server."""

    def __init__(self, server: Running, made: Sequence[bytes], pace: Pace) -> None:
        self._server, self._made, self._pace = server, made, pace
        self._target = Target(server.url)
        self._copy = time.time_ns()
        self._steps: list[Step] = []
        self._limit: Limit | None = None

    def run(self) -> Curve:
        """Alone, then the search for the knee."""
        alone = percentiles(np.array(asyncio.run(self._alone())))
        self._limit = limit = limit_of(alone["p50"], alone["p99"], self._pace.is_mixed)
        print(f"  alone: p50 {alone['p50']:.1f} ms, p99 {alone['p99']:.1f}; limit {limit.p99_ms:.1f}", flush=True)
        budgets = {str(budget["tokens"]): float(budget["milliseconds"]) for budget in self._server.budgets}
        observer = Observer(self._server.url, self._server.pid, budgets)
        seconds = max(LEAST_TIMEOUT_SECONDS, TIMEOUT_LIMITS * limit.p99_ms / 1000)
        shares = Shares(replace(self._target, timeout_seconds=seconds), self._made, MAX_CONNECTIONS)
        try:
            with Fleet(shares, self._pace.num_processes) as fleet:
                first = FIRST_LOAD * 1000 / alone["p50"]
                found = search(lambda rate: self._step(rate, fleet, observer), limit, first, self._pace.max_steps)
                self._saturate(fleet, observer)
        finally:
            observer.close()
        return Curve(self._server.name, alone, limit, self._steps, None if found is None else found[1])

    def _saturate(self, fleet: Fleet, observer: Observer) -> None:
        """Go on where every rate so far was kept up with, so that the most that it answers is among the steps."""
        for _ in range(MAX_BEYOND):
            if not all(step.keeps_up for step in self._steps):
                return
            self._step(BEYOND * max(step.rate for step in self._steps), fleet, observer)

    def _step(self, rate: float, fleet: Fleet, observer: Observer) -> Step:
        whole, number = self._pace.step_seconds, len(self._steps)
        warm = WARM_SHARE * whole
        schedule = self._schedule(rate, number)
        edges = (warm, (warm + whole) / 2, whole)
        reading = observer.start([HEAD_START_SECONDS + edge for edge in edges])
        samples = fleet.fire(schedule)
        reading.join()
        window = Window(f"{rate:.1f}/s", warm, whole - warm)
        step = Step(rate, summarize(samples, window, {}), observer.usage())
        self._steps.append(step)
        print(f"  {_line(step)}", flush=True)
        asyncio.run(self._settle())
        return step

    def _schedule(self, rate: float, number: int) -> Schedule:
        """Poisson arrivals, but exactly as many as were asked for: a short step must not hold by a lucky draw."""
        random = np.random.default_rng([self._pace.seed, number])
        count = max(1, round(rate * self._pace.step_seconds))
        due = np.sort(random.uniform(0.0, self._pace.step_seconds, count))
        shown = random.integers(0, len(self._made), (count, 1), np.int32)
        return carry(Recipe("poisson", len(self._made), seed=self._pace.seed), due, shown, self._take_copies(count))

    async def _alone(self) -> list[float]:
        """Milliseconds of requests that met no other."""
        end, taken = time.monotonic() + ALONE_SECONDS, list[float]()
        pool = Pool(self._target, 1)
        try:
            for i in range(WARM_UP + ALONE):
                taken.append(await self._one(pool, i))
                if time.monotonic() > end and len(taken) >= WARM_UP + LEAST_ALONE:
                    break
        finally:
            pool.close()
        return taken[WARM_UP:]

    async def _settle(self) -> None:
        """Return when what a step left behind is done: an overloaded server may still work on it."""
        assert self._limit is not None, "settling before the limit is known: this is a bug"
        end, pool, i = time.monotonic() + SETTLE_SECONDS, Pool(self._target, 1), 0
        try:
            while await self._one(pool, i) > self._limit.p99_ms and time.monotonic() < end:
                i += 1
        finally:
            pool.close()

    async def _one(self, pool: Pool, place: int) -> float:
        picture = copy_of(self._made[place % len(self._made)], self._take_copies(1))
        began = time.monotonic()
        answer = await pool.ask(Composer(self._target).compose([picture]))
        if answer.code != "ok":
            raise ConfigurationError(f"{self._server.name} answered a lone request with {answer.code}; see its log")
        return 1000 * (time.monotonic() - began)

    def _take_copies(self, count: int) -> int:
        first, self._copy = self._copy, self._copy + count
        return first


def _line(step: Step) -> str:
    latency, result = step.result.latency_ms, step.result
    failed = "".join(f", {name} {count}" for name, count in result.errors.items())
    return (
        f"{step.rate:8.1f}/s: {result.answered_per_second:.1f} answers/s, p50 {latency['p50']:.1f}, "
        f"p99 {latency['p99']:.1f} ms{failed}; busiest: {step.usage.busiest}"
    )
