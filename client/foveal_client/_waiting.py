"""`WaitingThreads`: where work runs that may wait in the kernel for longer than anybody has patience.

A ThreadPoolExecutor's threads are joined when the process ends, so one that stands in the kernel keeps a process from
ending; these are not. Bounded: a thread that never comes back is one fewer, and what finds none waits in a queue,
where its caller's patience ends as it would anywhere.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import ParamSpec, TypeVar

Given = ParamSpec("Given")
Result = TypeVar("Result")


class WaitingThreads:
    """At most `most` threads, begun when needed. Whoever stops waiting for work leaves it to its thread."""

    def __init__(self, most: int, name: str) -> None:
        self._most, self._name = most, name
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._threads: list[threading.Thread] = []

    async def run(self, work: Callable[Given, Result], *args: Given.args, **keywords: Given.kwargs) -> Result:
        """What `work` returns or raises. Cancelled at once, whatever the thread does; work not begun is left out."""
        return await asyncio.wrap_future(self.submit(work, *args, **keywords))

    def submit(self, work: Callable[Given, Result], *args: Given.args, **keywords: Given.kwargs) -> Future[Result]:
        """Have it done."""
        future: Future[Result] = Future()

        def settle() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = work(*args, **keywords)
            except BaseException as error:  # whatever it is, it is for whoever waits
                future.set_exception(error)
            else:
                future.set_result(result)

        self._work.put(settle)
        if not self._idle.acquire(blocking=False) and len(self._threads) < self._most:
            thread = threading.Thread(target=self._serve, name=f"{self._name}-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()
        return future

    def close(self) -> None:
        """End the threads, each when it has done what it is at. Nothing may be submitted any more."""
        for _ in self._threads:
            self._work.put(None)

    def _serve(self) -> None:
        while (settle := self._work.get()) is not None:
            settle()
            del settle  # what the work was given may hold memory
            self._idle.release()
