"""`Watch`: whether a worker hangs, from its pulse and from what packs of a size take.

On a GPU a pack is late after LATE_FACTOR times its expected time, or `--worker-timeout-seconds` if that is longer. On a
CPU other jobs may take the processors away for any time: there a process hangs that waits instead of computing, or that
has used far more processor time than its pack needs.
"""

from __future__ import annotations

from dataclasses import dataclass

from foveal.engine.pace import Pace
from foveal.engine.pulse import Mark, Pulse
from foveal.engine.sent import SentPack

LATE_FACTOR = 5
COMPUTES_FACTOR = 10
"""In place of it on a CPU: threads that wait for each other on a busy machine use processor time too."""
WAITS_FACTOR = 2
"""On a CPU a pack computes from its beginning to its end; so much is for what a prediction may lack."""
UNUSUAL_SECONDS = 60.0
"""More, while kernels may be compiled or graphs captured: that takes as long as it takes."""


@dataclass(frozen=True)
class Patience:
    """Seconds after which a worker is taken to hang."""

    start: float
    """Without a word while it starts."""
    pack: float
    """With a pack, where this is longer than a few times its expected time."""


@dataclass(frozen=True)
class Expected:
    """What is known of the pack that a worker runs now."""

    seconds: float
    is_unusual: bool
    """True if it may have to wait for a compiler, or for a capture."""


def lateness_on_cpu(pulse: Pulse, since: Mark, threads: int, expected: Expected, patience: float) -> str:
    """What is wrong, or nothing."""
    if pulse.idled(since) > max(patience, WAITS_FACTOR * expected.seconds):
        return "does nothing with a pack in hand"
    if pulse.worked(since) > threads * max(patience, COMPUTES_FACTOR * expected.seconds):
        return "computes without end"
    return ""


def lateness_on_gpu(pulse: Pulse, since: Mark, expected: Expected, patience: float) -> str:
    """What is wrong, or nothing."""
    allowed = max(patience, LATE_FACTOR * expected.seconds) + (UNUSUAL_SECONDS if expected.is_unusual else 0.0)
    return "does not finish a pack" if pulse.spent(since) > allowed else ""


class Watch:
    """Over one worker; `threads` are those that it computes with on a CPU, 0 on a GPU."""

    def __init__(self, pulse: Pulse, threads: int) -> None:
        self._pulse, self._threads = pulse, threads
        self._mark = pulse.mark()
        self.pace = Pace()
        self.is_capturing = False

    def goes_on(self) -> None:
        """It answered, or has something to do where it had nothing: its time starts now."""
        self._mark = self._pulse.mark()

    @property
    def spent(self) -> float:
        """Seconds on what it does now."""
        return self._pulse.spent(self._mark)

    def trouble(self, is_starting: bool, oldest: SentPack | None, patience: Patience) -> str:
        """Why it should be ended, or nothing."""
        if trouble := self._pulse.trouble(is_starting):
            return trouble
        if is_starting:
            return "says nothing in its start" if self.spent > patience.start else ""
        if oldest is None:
            return ""
        expected = self._expected(oldest)
        if self._threads:
            return lateness_on_cpu(self._pulse, self._mark, self._threads, expected, patience.pack)
        return lateness_on_gpu(self._pulse, self._mark, expected, patience.pack)

    def _expected(self, pack: SentPack) -> Expected:
        is_replay = pack.budget is not None and pack.budget.is_captured
        return Expected(
            seconds=pack.milliseconds / 1000 * self.pace.slowness(pack.kind),
            is_unusual=self.is_capturing or not (is_replay or self.pace.knows(pack.kind)),
        )
