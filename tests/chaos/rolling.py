"""Two instances behind the SDK's balancing, restarted one after the other under load: no call may fail."""

from __future__ import annotations

import signal
import threading
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count

from foveal_client import Client, FovealError
from tests.chaos.pictures import marked
from tests.system.conftest import Running, start
from tests.system.test_encode import noise

SECONDS_TO_END = 30


def rolling_restart(program: tuple[str, ...], flags: Sequence[str], rounds: int, callers: int = 4) -> Counter[str]:
    """Restart each instance so many times; how many calls were made, and by name the errors that they raised."""
    running = [start(*flags, program=program) for _ in range(2)]
    for each in running:
        each.wait_ready()
    seen: Counter[str] = Counter()
    stop, numbers, picture = threading.Event(), count(), noise(50, 50, 1)
    try:
        with Client([each.url for each in running], timeout=30) as client, ThreadPoolExecutor(callers) as pool:

            def call() -> None:
                while not stop.is_set():
                    try:
                        client.encode(marked(picture, next(numbers)))
                        seen["calls"] += 1
                    except FovealError as error:
                        seen[type(error).__name__] += 1

            jobs = [pool.submit(call) for _ in range(callers)]
            try:
                for i in range(2 * rounds):
                    running[i % 2] = _restarted(running[i % 2], program, flags)
            finally:
                stop.set()
            for job in jobs:
                job.result()
    finally:
        for each in running:
            each.process.terminate()
            each.process.wait(SECONDS_TO_END)
    return seen


def _restarted(old: Running, program: tuple[str, ...], flags: Sequence[str]) -> Running:
    """The same instance anew, on the same port."""
    old.process.send_signal(signal.SIGTERM)
    assert old.process.wait(SECONDS_TO_END) == 0
    new = start(*flags, "--port", old.url.rsplit(":", 1)[1], program=program)
    new.wait_ready()
    return new
