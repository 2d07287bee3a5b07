"""Simulates a closed queue of images before a few workers, under several rules of packing.

Discrete events: whenever a worker is free the queue is filled up to its depth, the rule takes a pack from it, and the
worker is busy for what that pack costs. Nothing is run; the costs of the budgets are given.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from foveal.bench.mixture import plans
from foveal.engine.filling import Pack
from foveal.engine.ladder import Attention, Ladder
from foveal.engine.packing import next_pack, predicted_milliseconds
from foveal.types import PixelPlan, TokenBudget

POWERS_OF_TWO = tuple(2**n for n in range(6, 14))
"""The budgets 64 to 8192 that vLLM infers."""


@dataclass(frozen=True, eq=False)
class Waiting:
    """An image in the simulated queue."""

    num_tokens: int
    num_patches: int
    arrival: float
    packs_before: int
    """Packs that had started when it came."""
    deadline: float | None = None
    priority: int = 0
    max_company: int = 1 << 30


class Rule(Protocol):
    """Takes packs from a queue that never runs empty."""

    @property
    def ladder(self) -> Ladder:
        """The budgets that it uses."""

    def take(self, queue: Sequence[Waiting], now: float) -> Pack:
        """The next pack; members are places in the queue."""


@dataclass
class ByCost:
    """The rule of the service."""

    ladder: Ladder

    def take(self, queue: Sequence[Waiting], now: float) -> Pack:
        """The next pack."""
        pack = next_pack(queue, self.ladder, now)
        assert pack is not None, "the queue of a simulation ran empty: this is a bug"
        return pack


class NextFit:
    """The rule of vLLM 0.33: everything that waits, sorted ascending, put into one open pack after the other.

    A pack closes when the next image would exceed the largest budget or the number of images, or when two runs at
    their own budgets come to fewer tokens than one run of both, and the image's budget is not the smaller of the
    two. What arrives meanwhile waits until all packs of such a round have run.
    """

    def __init__(self, ladder: Ladder) -> None:
        self.ladder = ladder
        self._round: Iterator[list[Waiting]] = iter(())

    def take(self, queue: Sequence[Waiting], now: float) -> Pack:
        """The next pack of the round, or the first of a new one."""
        members = next(self._round, None)
        if members is None:
            self._round = iter(next_fit(queue, self.ladder))
            members = next(self._round)
        places = {id(image): place for place, image in enumerate(queue)}
        tokens = sum(image.num_tokens for image in members)
        budget = self.ladder.smallest_for(tokens, len(members))
        return Pack(tuple(places[id(image)] for image in members), tokens, budget, "" if budget else "oversize")


def next_fit(queue: Iterable[Waiting], ladder: Ladder) -> list[list[Waiting]]:
    """The packs of one round, see NextFit."""
    packs: list[list[Waiting]] = []
    held = 0
    for image in sorted(queue, key=lambda image: image.num_tokens):
        merged = held + image.num_tokens
        if not packs or _closes(ladder, held, image.num_tokens, len(packs[-1])):
            packs.append([image])
            held = image.num_tokens
        else:
            packs[-1].append(image)
            held = merged
    return packs


def _closes(ladder: Ladder, held: int, tokens: int, num_items: int) -> bool:
    present, own = ladder.smallest_for(held, num_items), ladder.smallest_for(tokens, 1)
    merged = ladder.smallest_for(held + tokens, num_items + 1)
    if present is None or own is None or merged is None:
        return True
    return present.tokens + own.tokens < merged.tokens and own.tokens >= present.tokens


@dataclass(frozen=True)
class Costs:
    """Measured or assumed budgets, ascending, and what the same work costs without padding."""

    budgets: tuple[TokenBudget, ...]
    attention: Attention

    def ladder(self, tokens: Iterable[int] | None = None) -> Ladder:
        """All budgets, or steps of these tokens, with times between measured ones interpolated."""
        if tokens is None:
            return Ladder(self.budgets, self.attention)
        most = max(b.items for b in self.budgets)
        steps = ((t, self._milliseconds(t)) for t in tokens)
        return Ladder(tuple(TokenBudget(t, min(t, most), ms) for t, ms in steps), self.attention)

    def line(self) -> tuple[float, float]:
        """Milliseconds of a run and of each of its tokens, without attention: the least-squares line."""
        costs, count = self.ladder().costs, len(self.budgets)
        mean_tokens, mean_cost = sum(b.tokens for b in self.budgets) / count, sum(costs) / count
        spread = sum((b.tokens - mean_tokens) ** 2 for b in self.budgets)
        both = sum((b.tokens - mean_tokens) * c for b, c in zip(self.budgets, costs, strict=True))
        slope = both / spread if spread else mean_cost / mean_tokens
        return max(mean_cost - slope * mean_tokens, 0.0), slope

    def _milliseconds(self, tokens: int) -> float:
        last = self.budgets[-1]
        if tokens > last.tokens:  # above the ladder time grows with tokens: everything there is arithmetic
            return last.milliseconds * tokens / last.tokens
        above = next(b for b in self.budgets if b.tokens >= tokens)
        below = max((b for b in self.budgets if b.tokens <= tokens), key=lambda b: b.tokens, default=above)
        if above.tokens == below.tokens:
            return above.milliseconds
        share = (tokens - below.tokens) / (above.tokens - below.tokens)
        return below.milliseconds + share * (above.milliseconds - below.milliseconds)


def assumed_costs(tokens: Iterable[int], items: int, run: float, per_token: float, attention: Attention) -> Costs:
    """Budgets that take so many milliseconds for a run and for each of its tokens, and their share of attention."""
    times = ((t, run + per_token * t + attention.measured(t)) for t in tokens)
    return Costs(tuple(TokenBudget(t, min(t, items), ms) for t, ms in times), attention)


@dataclass(frozen=True)
class Result:
    """What came of one rule at one depth. Images larger than the largest budget run eager and are not in it."""

    rule: str
    num_budgets: int
    depth: int
    num_packs: int
    num_images: int
    padding: float
    """Padded tokens as a share of real ones."""
    time_ratio: float
    """Time of all packs over that without padding, in as few runs as the depth permits."""
    max_waited: int
    """Packs that started while one image waited, at most."""


def simulate(
    name: str, rule: Rule, costs: Costs, images: Iterator[PixelPlan], depth: int, num_packs: int, num_workers: int
) -> Result:
    """Run one rule for so many packs."""
    queue: list[Waiting] = []
    free = [0.0] * num_workers
    started = num_images = tokens = held = waited = 0
    busy = attention = 0.0
    while started < num_packs:
        now = heapq.heappop(free)
        while len(queue) < depth:
            plan = next(images)
            queue.append(Waiting(plan.num_tokens, plan.num_patches, now / 1000, started))
        pack = rule.take(queue, now / 1000)
        members = [queue[i] for i in pack.members]
        cost = predicted_milliseconds(members, pack.budget, rule.ladder)
        heapq.heappush(free, now + cost)
        queue = [image for i, image in enumerate(queue) if i not in set(pack.members)]
        if pack.budget is None:
            continue
        waited = max(waited, *(started - image.packs_before for image in members))
        started += 1
        num_images += len(members)
        tokens += pack.num_tokens
        held += pack.budget.tokens
        busy += cost
        attention += rule.ladder.attention.ms_per_patch2 * sum(image.num_patches**2 for image in members)
    run, per_token = costs.line()
    runs = max(tokens / rule.ladder.max_tokens, num_images / depth)
    ideal = run * runs + per_token * tokens + attention
    size = len(rule.ladder.budgets)
    return Result(name, size, depth, started, num_images, held / tokens - 1, busy / ideal, waited)


def compare(costs: Costs, depths: Iterable[int], num_packs: int, num_workers: int, seed: int) -> list[Result]:
    """Every rule at every depth, each over the same images."""
    results: list[Result] = []
    for depth in depths:
        powers, steps = costs.ladder(POWERS_OF_TWO), costs.ladder()
        rules = (("vLLM 0.33", NextFit(powers)), ("by cost", ByCost(powers)), ("by cost", ByCost(steps)))
        results += [simulate(name, rule, costs, plans(seed), depth, num_packs, num_workers) for name, rule in rules]
    return results
