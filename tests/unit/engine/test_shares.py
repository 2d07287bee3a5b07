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
ONE_AT_A_TIME = Ladder(tuple(TokenBudget(t, 1, 1.0 + 0.01 * t) for t in (64, 1664)))
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
    early: list[float] = field(default_factory=list)
    """Seconds that packs were given to the worker before the one in its hands ended."""


async def _serve(clients: Iterable[Client], seconds: float, ladder: Ladder, depth: int, pace: float) -> Seen:
    loop, seen = asyncio.get_running_loop(), Seen()
    batcher = Batcher(0.0, Metrics(CollectorRegistry()), loop.time)
    worker: Any = SimulatedWorker(lambda: batcher, seen.early, ladder, depth, pace)
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


def serve(*clients: Client, seconds: float = 120.0, ladder: Ladder = CPU, depth: int = 1, pace: float = 1.0) -> Seen:
    return run_virtually(_serve(clients, seconds, ladder, depth, pace))


@pytest.mark.parametrize("at_once", [1, 4])
def test_a_caller_of_small_images_waits_for_the_pack_that_runs_and_little_more(at_once: int) -> None:
    crowd = [Client(f"large-{i}", LARGE, at_once) for i in range(8)]
    seen = serve(Client("small", SMALL), *crowd)
    assert median(seen.seconds["small"]) < LARGE_SECONDS + 0.05
    assert max(seen.seconds["small"]) < LARGE_SECONDS + 0.1
    shares = [seen.tokens[client.name] for client in crowd]
    assert max(shares) - min(shares) <= (at_once + 1) * LARGE and sum(shares) > 0.9 * 120 / LARGE_SECONDS * LARGE


def test_the_same_where_a_worker_may_have_two_packs_in_hand() -> None:
    """The second is given to it only shortly before the first ends, and so is not a large one that came earlier."""
    seen = serve(Client("small", SMALL), *(Client(f"large-{i}", LARGE, 4) for i in range(8)), depth=2)
    assert max(seen.seconds["small"]) < LARGE_SECONDS + 0.1


def test_a_worker_with_short_packs_has_two_in_hand_and_one_with_long_packs_only_shortly() -> None:
    crowd = [Client(f"large-{i}", LARGE, 4) for i in range(8)]
    short, long = serve(*crowd, seconds=5.0, ladder=GPU, depth=2), serve(*crowd, seconds=20.0, depth=2)
    assert max(short.early) > 0 and len(short.early) > 100
    assert 0.09 < max(long.early) < 0.11 and len(long.early) > 20


def test_a_worker_that_is_faster_than_predicted_has_two_packs_in_hand_all_the_same() -> None:
    """What is predicted wrongly does not add up: each pack but the first is there before the one before it ends."""
    crowd = [Client(f"large-{i}", LARGE, 4) for i in range(8)]
    seen = serve(*crowd, seconds=10.0, ladder=GPU, depth=2, pace=0.5)
    assert len(seen.early) > 400 and min(seen.early[1:-1]) > 0.003


def test_small_callers_do_not_take_the_share_of_large_ones() -> None:
    """Nor do they lose theirs, who keep thirty thirtieths of a large image waiting."""
    seen = serve(
        Client("large", LARGE, 2), *(Client(f"small-{i}", 53, 30) for i in range(3)), ladder=ONE_AT_A_TIME, seconds=10.0
    )
    shares = list(seen.tokens.values())
    assert max(shares) - min(shares) <= 3 * LARGE


def test_a_lead_in_priority_goes_first_and_starves_nobody() -> None:
    high, low = Client("high", LARGE, 4, priority=3), Client("low", LARGE, 4)
    seen = serve(high, low, Client("small", SMALL))
    assert seen.tokens["high"] > 4 * seen.tokens["low"] > 0
    assert max(seen.seconds["small"]) < 3.0 + 3 * LARGE_SECONDS, "a step of priority is worth a second of age"


def test_images_that_end_before_their_deadline_alone_do_so_beside_a_crowd() -> None:
    seen = serve(Client("small", SMALL, patience=0.7), *(Client(f"large-{i}", LARGE, 4) for i in range(8)))
    assert len(seen.seconds["small"]) > 200
