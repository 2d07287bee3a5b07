"""The worker's ladder on a GPU: captured one step after the other, measured, and pruned to what is useful."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from itertools import pairwise

import torch

from foveal.gpu.graphs import GraphSet
from foveal.gpu.layout import BadPack, Layout, Step
from foveal.gpu.warm_up import TYPICAL_TOKENS, single_layout, typical_layout
from foveal.ipc.messages import LadderChanged
from foveal.types import TokenBudget

log = logging.getLogger(__name__)


class GraphLadder:
    """Which steps there are, which have graphs, and what each costs."""

    def __init__(self, graphs: GraphSet, steps: Sequence[Step], reserve_bytes: int, captures_all: bool) -> None:
        self.steps = {step.tokens: step for step in steps}
        self._offered = frozenset(self.steps)
        self._graphs, self._reserve = graphs, reserve_bytes
        self._todo = sorted(steps, reverse=True) if captures_all else []
        self._milliseconds: dict[Step, float] = {}
        self._bytes: dict[Step, int] = {}
        self._ms_per_patch2 = 0.0
        self._began = time.perf_counter()

    @property
    def is_pending(self) -> bool:
        """True while steps wait to be captured."""
        return bool(self._todo)

    def step_for(self, budget: int) -> Step | None:
        """The step that a pack asks for; None for eager. Raises BadPack.

        A budget may have been dropped after the pack was sent: then it takes the next larger one, or runs eager.
        """
        if budget in self.steps or budget == 0:
            return self.steps.get(budget)
        if budget not in self._offered:
            raise BadPack(f"there is no budget of {budget} tokens: this is a bug")
        return min((step for step in self.steps.values() if step.tokens > budget), default=None)

    def ask_for(self, step: Step) -> None:
        """Capture a step soon, if it is not and was not refused (for lazy capture)."""
        if step not in self._graphs and step not in self._todo and step in self.steps.values():
            self._todo.append(step)

    def capture_next(self) -> LadderChanged:
        """Capture one more step, largest first; drop it where memory lacks. Nothing else may run meanwhile."""
        step = self._todo.pop(0)
        try:
            self._capture(step)
        except torch.OutOfMemoryError:
            log.warning("a budget was dropped: device memory is short", extra={"budget_tokens": step.tokens})
            del self.steps[step.tokens]
            torch.cuda.empty_cache()
        if not self._todo:
            self._prune()
            torch.cuda.empty_cache()  # what the warm runs took; graphs keep theirs
            seconds = round(time.perf_counter() - self._began, 2)
            log.info("graphs captured", extra={"graphs": len(self._milliseconds), "seconds": seconds})
        return self.told()

    def told(self) -> LadderChanged:
        """The ladder as the parent packs by it."""
        budgets = tuple(
            TokenBudget(
                s.tokens, s.items, round(self._milliseconds.get(s, 0.0), 4), self._bytes.get(s, 0), s in self._graphs
            )
            for s in sorted(self.steps.values())
        )
        area = self._graphs.buffers.geometry.merge_area
        return LadderChanged(
            budgets=budgets,
            ms_per_patch2=self._ms_per_patch2,
            typical_patches=TYPICAL_TOKENS * area,
            is_final=not self._todo,
            graph_bytes=sum(self._bytes.values()),
        )

    def _capture(self, step: Step) -> None:
        free, _ = torch.cuda.mem_get_info()
        if free < self._reserve:
            raise torch.OutOfMemoryError(f"{free} bytes are free, {self._reserve} are kept for eager runs")
        self._place(typical_layout(step, self._graphs.buffers.geometry))
        self._bytes[step] = self._graphs.capture(step)
        self._milliseconds[step] = self._graphs.milliseconds(step)
        if not self._ms_per_patch2:
            self._ms_per_patch2 = self._attention_cost(step)

    def _attention_cost(self, step: Step) -> float:
        """Milliseconds per squared row: one large picture against the usual ones, at the same step.

        Zero where pictures have one size: then nothing can vary.
        """
        geometry = self._graphs.buffers.geometry
        usual, single = typical_layout(step, geometry), single_layout(step, geometry)
        squares = _squares(single) - _squares(usual)
        if squares <= 0:
            return 0.0
        self._place(single)
        return max(0.0, (self._graphs.milliseconds(step) - self._milliseconds[step]) / squares)

    def _place(self, layout: Layout) -> None:
        with torch.cuda.stream(self._graphs.stream):
            self._graphs.buffers.place(layout)
            self._graphs.stream.synchronize()

    def _prune(self) -> None:
        """Drop a step that takes no less time than a larger one: it only costs memory and choice."""
        best = float("inf")
        for step in sorted(self._milliseconds, reverse=True):
            if self._milliseconds[step] >= best:
                self._graphs.drop(step)
                del self.steps[step.tokens], self._milliseconds[step], self._bytes[step]
            else:
                best = self._milliseconds[step]


def _squares(layout: Layout) -> int:
    return sum((stop - start) ** 2 for start, stop in pairwise(layout.cu_rows))
