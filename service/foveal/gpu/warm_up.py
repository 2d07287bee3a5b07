"""What each budget costs on the CPU, measured at start: the packer chooses by these numbers."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch

from foveal.gpu.executable import Executable
from foveal.gpu.layout import Grid, Layout, Step, lay_out, num_tokens
from foveal.gpu.runner import synchronize
from foveal.gpu.towers.protocol import Geometry
from foveal.types import TokenBudget

CPU_SECONDS = 0.8
"""A CPU start spends no more than about this on measuring; larger budgets are then estimated in proportion."""
FIRST_SECONDS = 0.2
"""Of which the smallest step has this much for several runs: the first ones wake threads, and all else rests on it."""
TYPICAL_TOKENS = 256
"""Tokens of the pictures that are measured with, as of a photo of 512 x 512; one large one would cost far more."""


def measure(executable: Executable, ladder: Sequence[Step], device: torch.device) -> tuple[TokenBudget, ...]:
    """The ladder with milliseconds, ascending; steps that were not measured are interpolated by tokens."""
    known = _on_cpu(executable, ladder, device)
    tokens = sorted(known)
    # a small budget that a hiccup made look dear must not chase packs into a larger one
    milliseconds = np.maximum.accumulate([known[t] for t in tokens])
    estimated = np.interp([step.tokens for step in ladder], tokens, milliseconds)
    beyond = [max(1.0, step.tokens / tokens[-1]) for step in ladder]
    return tuple(
        TokenBudget(step.tokens, step.items, round(float(ms * factor), 4))
        for step, ms, factor in zip(ladder, estimated, beyond, strict=True)
    )


def _on_cpu(executable: Executable, ladder: Sequence[Step], device: torch.device) -> dict[int, float]:
    """Smallest, middle and largest step, as far as the time allows."""
    chosen = sorted({ladder[0], ladder[len(ladder) // 2], ladder[-1]})
    began = time.perf_counter()
    known = {chosen[0].tokens: _best_of(5, executable, chosen[0], device, FIRST_SECONDS)}
    for before, step in pairwise(chosen):
        predicted = known[before.tokens] / 1000 * step.tokens / before.tokens
        if time.perf_counter() - began + predicted > CPU_SECONDS:
            break
        known[step.tokens] = _best_of(1, executable, step, device)
    return known


def _best_of(
    times: int,
    executable: Executable,
    step: Step,
    device: torch.device,
    seconds: float = math.inf,
) -> float:
    """Milliseconds of the fastest of some runs with every row in use; after two of them time may run out."""
    executable.buffers.place(typical_layout(step, executable.buffers.geometry))
    taken: list[float] = []
    while len(taken) < times and (len(taken) < 2 or sum(taken) < seconds):
        synchronize(device)
        began = time.perf_counter()
        executable.run(step)
        synchronize(device)
        taken.append(time.perf_counter() - began)
    return min(taken) * 1000


def typical_layout(step: Step, geometry: Geometry) -> Layout:
    """Pictures of a usual size, which fill the step to its last token; of the one size where there is but one."""
    if geometry.fixed_grid is not None:
        each = num_tokens(*geometry.fixed_grid, geometry)
        return lay_out((geometry.fixed_grid,) * min(step.items, step.tokens // each), geometry)
    pictures = min(step.items, -(-step.tokens // TYPICAL_TOKENS))
    each, rest = divmod(step.tokens, pictures)
    return _pictures([each + (i < rest) for i in range(pictures)], geometry)


def single_layout(step: Step, geometry: Geometry) -> Layout:
    """One picture that fills the step, or the usual ones where there is but one size."""
    return typical_layout(step, geometry) if geometry.fixed_grid is not None else _pictures([step.tokens], geometry)


def _pictures(sizes: Sequence[int], geometry: Geometry) -> Layout:
    """Pictures of so many tokens, prefix included, each as near to a square as its number allows."""
    areas = [size - geometry.prefix_rows for size in sizes]
    return lay_out(tuple(_squarest(area, geometry.merge_size) for area in areas if area > 0), geometry)


def _squarest(area: int, side: int) -> Grid:
    """The grid in patches of `area` tokens that is nearest to a square."""
    height = max(h for h in range(1, math.isqrt(area) + 1) if area % h == 0)
    return height * side, area // height * side
