"""The inferred ladder of token budgets: fine steps, since every padded row is real compute.

Steps of 64 to 1024, 128 to 2048, 256 to 4096, 512 to 8192: padding stays below 6 % for a lone image of a usual
mixture, where powers of two give 38 % (simulated; docs/decisions/0004).
"""

from __future__ import annotations

STEPS = ((64, 1024), (128, 2048), (256, 4096), (512, 8192))
MAX_BUDGET_TOKENS = STEPS[-1][1]
"""Above this an image is bound by arithmetic, not by launches, and runs eager as fast."""


def inferred_budgets(max_image_tokens: int) -> tuple[int, ...]:
    """Ascending budgets up to the largest image, and the largest image itself where it ends the ladder early."""
    most = min(max_image_tokens, MAX_BUDGET_TOKENS)
    budgets: list[int] = []
    start = 0
    for step, end in STEPS:
        budgets += range(start + step, end + 1, step)
        start = end
    return (*(b for b in budgets if b < most), most)
