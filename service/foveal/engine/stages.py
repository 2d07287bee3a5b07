"""`Stages`: how far a request or one of its images has come. The one record that answers, log, metrics and traces read,
also of what failed.
"""

from __future__ import annotations

import time
from typing import NamedTuple


class Stage(NamedTuple):
    """One stage that was passed. Times are of time.monotonic()."""

    name: str
    began: float
    ended: float

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.ended - self.began


class Stages:
    """The stages that were passed, and the current one: empty once it is through."""

    __slots__ = ("budget", "current", "mode", "passed")

    def __init__(self, current: str = "", passed: list[Stage] | None = None, mode: str = "", budget: int = 0) -> None:
        self.current = current
        self.passed = passed if passed is not None else []
        self.mode = mode
        """How its pack ran: graph, static (the same buffers on a CPU) or eager; empty before that."""
        self.budget = budget
        """Tokens of the budget that its pack ran in; 0 when eager."""

    def record(self, name: str, seconds: float) -> None:
        """A stage ends now."""
        now = time.monotonic()
        self.passed.append(Stage(name, now - seconds, now))

    def record_pack(self, queued: float, sent: float, copy_in: float, encode: float, copy_out: float) -> None:
        """A pack ends now, that was sent to a worker at a moment; its item was queued at one."""
        now = time.monotonic()
        began_out = now - copy_out
        began = began_out - encode
        self.passed += (
            Stage("queue", queued, sent),
            Stage("copy_in", began - copy_in, began),
            Stage("encode", began, began_out),
            Stage("copy_out", began_out, now),
        )

    def seconds(self) -> dict[str, float]:
        """Time of each stage that was passed, in the order of the first of each."""
        found: dict[str, float] = {}
        for name, began, ended in self.passed:
            found[name] = found.get(name, 0.0) + ended - began
        return found
