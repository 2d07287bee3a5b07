"""How busy the GPU is: by the service's own count of replays, and by NVML where there is one."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def replay_share(
    before: Mapping[str, float], after: Mapping[str, float], budgets: Mapping[str, float], seconds: float
) -> float:
    """Share of a device's time in replays: how often each budget ran, times what it takes alone.

    `before` and `after` count replays by budget, `budgets` are milliseconds.
    """
    busy = sum((count - before.get(budget, 0.0)) * budgets.get(budget, 0.0) for budget, count in after.items())
    return busy / 1000 / seconds


def peak_images(budgets: Sequence[Mapping[str, Any]], tokens_per_image: float) -> float:
    """Images a second of the budget that encodes most tokens in a second, were it run without a pause or padding."""
    rates = [b["tokens"] / b["milliseconds"] for b in budgets if b["milliseconds"] > 0]
    return 1000 * max(rates, default=0.0) / tokens_per_image


def utilization() -> Callable[[], float] | None:
    """Asks the first GPU for the share of the last moments in which any kernel ran; None without NVML."""
    try:
        nvml = importlib.import_module("pynvml")
    except ModuleNotFoundError:
        return None
    try:
        nvml.nvmlInit()
        gpu = nvml.nvmlDeviceGetHandleByIndex(0)
    except nvml.NVMLError:
        return None
    return lambda: float(nvml.nvmlDeviceGetUtilizationRates(gpu).gpu) / 100
