"""The generator processes of one run: started once, then given a share of every step at the same moment."""

from __future__ import annotations

import multiprocessing
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from types import TracebackType
from typing import Self

from foveal.bench.serve.generator import Samples, Shares, fire
from foveal.bench.serve.schedule import Schedule

HEAD_START_SECONDS = 0.2
"""From handing out the shares to time 0, so that no process starts late."""

_shares: Shares | None = None
"""Set once in each generator process: pictures are large, and every step needs the same ones."""


class Fleet:
    """A context in which the processes live."""

    def __init__(self, shares: Shares, num_processes: int) -> None:
        self._num = num_processes
        context = multiprocessing.get_context("spawn")
        self._pool = ProcessPoolExecutor(num_processes, context, initializer=_receive, initargs=(shares,))

    def __enter__(self) -> Self:
        # each task keeps its process for a while, so that all of them are started and none takes two
        list(self._pool.map(_wait, [HEAD_START_SECONDS] * self._num))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(cancel_futures=True)

    def fire(self, schedule: Schedule) -> Samples:
        """Send a whole schedule; returns when all is answered."""
        start = time.monotonic() + HEAD_START_SECONDS
        shares = [schedule.share(i, self._num) for i in range(self._num)]
        sent = [self._pool.submit(_fire, share, start) for share in shares if len(share.due)]
        return Samples.joined([task.result() for task in sent])


def _receive(shares: Shares) -> None:
    global _shares
    _shares = shares


def _wait(seconds: float) -> None:
    threading.Event().wait(seconds)


def _fire(schedule: Schedule, start: float) -> Samples:
    assert _shares is not None, "a generator process has no pictures: this is a bug"
    return fire(_shares, schedule, start)
