"""What an image costs a CPU at least: its matrix products and its attention, as quick as this machine can do them.

Each is measured alone, with one thread, by that thread's own processor time: other jobs of the machine hardly change
it, however busy they are while a worker starts. Divided by the threads, as if they helped each other without loss. So
a worker may be slower than this, and no work that is possible looks impossible.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F

from foveal.families.tower_plan import TowerPlan
from foveal.ipc.messages import LeastCost

OPERATIONS = 1 << 31
"""Of each measurement, at most: a fraction of a second on one core."""
MAX_ROWS = 4096
TIMES = 3


@torch.inference_mode()
def least_cost(plan: TowerPlan, dtype: torch.dtype) -> LeastCost:
    """Measure with the tower's widths; takes about half a second."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        per_patch, per_patch2 = _matrices(plan, dtype), _attention(plan, dtype)
    finally:
        torch.set_num_threads(threads)
    return LeastCost(1000 * per_patch / threads, 1000 * per_patch2 / threads)


def _matrices(plan: TowerPlan, dtype: torch.dtype) -> float:
    """Seconds of a row's products with all weights of the blocks."""
    hidden, inner = plan.hidden, plan.intermediate
    rows = max(1, min(MAX_ROWS, OPERATIONS // (2 * hidden * inner)))
    x, weight = torch.zeros(rows, hidden, dtype=dtype), torch.zeros(inner, hidden, dtype=dtype)
    seconds = _quickest(lambda: F.linear(x, weight))
    weights = plan.depth * (4 * hidden**2 + (3 if plan.gated else 2) * hidden * inner)
    return seconds / rows * weights / (hidden * inner)


def _attention(plan: TowerPlan, dtype: torch.dtype) -> float:
    """Seconds for each pair of rows, in all blocks that attend over whole pictures; 0 where pictures have one size."""
    if plan.fixed_grid is not None:
        return 0.0
    rows = min(MAX_ROWS, math.isqrt(OPERATIONS // (4 * plan.hidden)))
    qkv = torch.zeros(3, 1, plan.heads, rows, plan.hidden // plan.heads, dtype=dtype)
    blocks = len(plan.positions.full_blocks) if plan.positions.window else plan.depth
    return blocks * _quickest(lambda: F.scaled_dot_product_attention(*qkv)) / rows**2


def _quickest(run: Callable[[], object]) -> float:
    taken: list[float] = []
    for _ in range(TIMES):
        began = time.thread_time()
        run()
        taken.append(time.thread_time() - began)
    return min(taken)
