"""What callers see of fair shares, with workers of virtual time: no clock."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from foveal.engine.batcher import Batcher
from foveal.engine.demand import Asker, Demand
from foveal.engine.items import Item
from foveal.engine.ladder import Ladder
from foveal.ipc.arena import Arena
from foveal.metrics import Metrics
from foveal.types import GridTHW, Output, TokenBudget
from tests.unit.engine.virtual import CPU, SimulatedWorker, run_virtually

SMALL, LARGE = 49, 1600
LARGE_SECONDS = 0.56
GPU = Ladder(tuple(TokenBudget(t, 64, 0.5 + 0.0066 * t) for t in (64, 128, 256, 512, 1024, 2048, 4096, 5120)))
BLOCK = Arena("shares", 4096).allocate(8)


@dataclass(frozen=True)
class Client:
    """Keeps so many images of a size in flight."""

    name: str
    tokens: int
    at_once: int = 1
    priority: int = 0
    patience: float | None = 60.0
    pause: float = 0.0


@dataclass
class Seen:
    """Seconds that images took, and tokens that were encoded, by caller."""

    seconds: dict[str, list[float]] = field(default_factory=dict)
    tokens: Counter[str] = field(default_factory=Counter)


async def _serve(clients: Iterable[Client], seconds: float, ladder: Ladder, depth: int) -> Seen:
    loop, seen = asyncio.get_running_loop(), Seen()
    batcher = Batcher(0.0, Metrics(CollectorRegistry()), loop.time)
    worker: Any = SimulatedWorker(lambda: batcher, ladder, depth)
    batcher.serve([worker])

    async def ask(client: Client) -> None:
        item = Item(GridTHW(1, 2, 2 * client.tokens), client.tokens, BLOCK, BLOCK, Output("tokens", "float32"))
        while loop.time() < seconds:
            began = loop.time()
            deadline = None if client.patience is None else began + client.patience
            await batcher.encode(item, Demand(Asker(client.name, client.priority, deadline)))
            seen.seconds.setdefault(client.name, []).append(loop.time() - began)
            seen.tokens[client.name] += client.tokens
            await asyncio.sleep(client.pause)

    await asyncio.gather(*(ask(client) for client in clients for _ in range(client.at_once)))
    return seen


def serve(*clients: Client, seconds: float = 120.0, ladder: Ladder = CPU, depth: int = 1) -> Seen:
    return run_virtually(_serve(clients, seconds, ladder, depth))


@pytest.mark.parametrize("at_once", [1, 4])
def test_a_caller_of_small_images_waits_for_the_pack_that_runs_and_little_more(at_once: int) -> None:
    crowd = [Client(f"large-{i}", LARGE, at_once) for i in range(8)]
    seen = serve(Client("small", SMALL), *crowd)
    assert median(seen.seconds["small"]) < LARGE_SECONDS + 0.05
    assert max(seen.seconds["small"]) < LARGE_SECONDS + 0.1
    shares = [seen.tokens[client.name] for client in crowd]
    assert max(shares) - min(shares) <= (at_once + 1) * LARGE and sum(shares) > 0.9 * 120 / LARGE_SECONDS * LARGE
