"""What a request's log line tells: its stages, how its packs ran, and where it failed."""

from __future__ import annotations

import re
from typing import Any

from foveal.api.context import RequestContext

ORDER = ("probe", "admission", "prep", "queue", "encode")
"""What an image goes through, as `failed_in` names it."""


def facts_of(context: RequestContext) -> dict[str, Any]:
    """For the log: what its route told, and what is known of its stages where it told nothing, having failed."""
    return _stages(context) | _packs(context) | _failure(context) | context.facts


def _stages(context: RequestContext) -> dict[str, float]:
    """Seconds of each stage that was passed; of several images that of the slowest, as in Server-Timing."""
    found: dict[str, float] = dict(context.stages.seconds())
    for stages in context.images.values():
        for name, seconds in stages.seconds().items():
            found[name] = max(found.get(name, 0.0), seconds)
    return {name: round(seconds, 6) for name, seconds in found.items()}


def _packs(context: RequestContext) -> dict[str, Any]:
    """How its images were encoded: graph, static (CPU), eager or mixed, and in which budgets."""
    ran = [stages for stages in context.images.values() if stages.mode]
    if not ran:
        return {}
    modes = {stages.mode for stages in ran}
    budgets = sorted({stages.budget for stages in ran if stages.budget})
    return {"mode": modes.pop() if len(modes) == 1 else "mixed", "budgets": budgets}


def _failure(context: RequestContext) -> dict[str, Any]:
    """Where it was when it failed: of several images the one that was refused, else the one that came least far."""
    if context.code == "ok":
        return {}
    stage = context.stages.current
    if stage == "images":
        stage = _of_images(context) or stage
    return {"failed_in": stage, "param": context.param} if context.param else {"failed_in": stage}


def _of_images(context: RequestContext) -> str:
    refused = re.search(r"\[(\d+)\]$", context.param or "")
    if refused is not None and (stages := context.images.get(int(refused[1]))) is not None:
        return stages.current
    current = {stages.current for stages in context.images.values()}
    return next((stage for stage in ORDER if stage in current), "")
