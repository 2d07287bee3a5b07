"""Which of this machine's jobs go first, so that figures can be taken where other jobs run beside."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from tests.system.conftest import Running

FIRST, USUAL = -15, 0


@contextlib.contextmanager
def going_first(running: Running) -> Iterator[None]:
    """Let a server, its children and this process run before this machine's other jobs; raises PermissionError.

    Among themselves they stay equal. The kernel shares processors out by session first (autogroup in sched(7)), and
    each child has a session of its own.
    """
    for pid in (os.getpid(), running.process.pid, *running.children()):
        _weigh(pid, FIRST)
    try:
        yield
    finally:
        _weigh(os.getpid(), USUAL)  # the others end with the server


def _weigh(pid: int, nice: int) -> None:
    os.setpriority(os.PRIO_PROCESS, pid, nice)
    group = Path(f"/proc/{pid}/autogroup")
    if group.exists():
        group.write_text(str(nice))
