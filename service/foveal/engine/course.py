"""`Course`: how far a request or one of its images has come. Read for the log and for traces, also when it failed."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
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


@dataclass
class Course:
    """The stages behind it, and the one that it is in: empty once it is through."""

    under_way: str = ""
    stages: list[Stage] = field(default_factory=list)
    pixels: int = 0
    """Of the picture as sent, once its header is read."""
    mode: str = ""
    """How its pack ran: graph, static (the same buffers on a CPU) or eager; empty before that."""
    budget: int = 0
    """Tokens of the budget that its pack ran in; 0 when eager."""

    def passed(self, **seconds: float) -> None:
        """These stages, one after the other, end now."""
        end = time.monotonic()
        began = end - sum(seconds.values())
        for name, length in seconds.items():
            self.stages.append(Stage(name, began, began + length))
            began += length

    def seconds(self) -> Mapping[str, float]:
        """Time of each stage that was passed."""
        found: dict[str, float] = {}
        for stage in self.stages:
            found[stage.name] = found.get(stage.name, 0.0) + stage.seconds
        return found
