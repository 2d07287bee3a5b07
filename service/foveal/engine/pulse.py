"""`Pulse`: whether a child process lives, from what it says and from what the kernel says of it.

Time here is the parent's own: it goes on while the parent looks, by no more than MAX_STEP_SECONDS a look. So a parent
that was late itself, or a machine that was suspended, makes no child look silent.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

HEARTBEAT_SECONDS = 1.0
WATCH_SECONDS = 0.5
MAX_STEP_SECONDS = 2 * WATCH_SECONDS
SUSPECT_SECONDS = 3.0
"""Without a sign of life for so long, a child is given nothing new."""
SILENT_SECONDS = 8.0
"""Without one for so long, it hangs."""
STOPPED_SECONDS = 3.0
"""Stopped for so long, it is not expected to be continued."""
WORKING_SHARE = 0.05
"""Of a processor: who uses less only waits."""
_STOPPED, _RUNNABLE = "T", "R"


@dataclass(frozen=True)
class Vitals:
    """What the kernel says of a process."""

    state: str
    """Of its main thread: R for running or waiting for a processor, S for waiting, T for stopped by a signal."""
    cpu_seconds: float
    """Processor time of all its threads."""


def vitals_of(pid: int) -> Vitals | None:
    """None when there is no such process any more."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    ticks = int(fields[11]) + int(fields[12])
    return Vitals(fields[0].decode(), ticks / os.sysconf("SC_CLK_TCK"))


@dataclass(frozen=True)
class Mark:
    """A moment in a child's life."""

    at: float
    cpu_seconds: float


class Pulse:
    """One process after the other of one child."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, look_at: Callable[[int], Vitals | None] = vitals_of
    ) -> None:
        self._clock, self._look_at = clock, look_at
        self.now = 0.0
        """The parent's own time."""
        self._looked = clock()
        self._pid: int | None = None
        self._heard = self._worked = self._ran = 0.0
        """When it last said something, did something, was not stopped."""
        self._cpu_seconds = 0.0
        self.is_suspect = False
        """True if it should be given nothing new."""

    def began(self, pid: int) -> None:
        """A new process."""
        self._pid, self._cpu_seconds = pid, 0.0
        self._looked = self._clock()
        self._heard = self._worked = self._ran = self.now
        self.is_suspect = False

    def ended(self) -> None:
        """It is gone."""
        self._pid = None

    def heard(self) -> None:
        """It said something."""
        self._heard = self.now
        self.is_suspect = self.stopped_seconds > 0

    def look(self) -> None:
        """Let time go on and see how it is. To be called every WATCH_SECONDS, after what it said was taken in."""
        moment = self._clock()
        step, self._looked = min(moment - self._looked, MAX_STEP_SECONDS), moment
        self.now += step
        vitals = None if self._pid is None else self._look_at(self._pid)
        if vitals is None:  # its end is told by its socket
            self._heard = self._worked = self._ran = self.now
            self.is_suspect = False
            return
        used, self._cpu_seconds = vitals.cpu_seconds - self._cpu_seconds, vitals.cpu_seconds
        if vitals.state == _RUNNABLE or used > WORKING_SHARE * step:
            self._worked = self.now
        if vitals.state != _STOPPED:
            self._ran = self.now
        self.is_suspect = self.stopped_seconds > 0 or self.silent_seconds > SUSPECT_SECONDS

    def mark(self) -> Mark:
        """This moment, to measure from."""
        return Mark(self.now, self._cpu_seconds)

    def spent(self, since: Mark) -> float:
        """Seconds."""
        return self.now - since.at

    def worked(self, since: Mark) -> float:
        """Processor seconds."""
        return self._cpu_seconds - since.cpu_seconds

    def idled(self, since: Mark) -> float:
        """Seconds in which it only waited, up to now and in one piece."""
        return self.now - max(since.at, self._worked)

    @property
    def silent_seconds(self) -> float:
        """Since it last said or did something. Who keeps the interpreter busy, as a compiler may, says nothing."""
        return self.now - max(self._heard, self._worked)

    @property
    def stopped_seconds(self) -> float:
        """Since it was last seen not to be stopped (SIGSTOP)."""
        return self.now - self._ran

    def trouble(self, is_starting: bool) -> str:
        """Why it should be ended, whatever it does; nothing if it lives. While it starts, it may import in silence."""
        if self.stopped_seconds > STOPPED_SECONDS:
            return "is stopped"
        return "gives no sign of life" if self.silent_seconds > SILENT_SECONDS and not is_starting else ""
