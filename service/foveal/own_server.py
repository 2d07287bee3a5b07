"""A server of one's own as a child process: started, asked where it listens, ended."""

from __future__ import annotations

import contextlib
import re
import subprocess
from collections.abc import Iterator
from typing import NamedTuple

from foveal.errors import ConfigurationError


class Listening(NamedTuple):
    """A server that has said where it listens; it may still be starting its workers."""

    url: str
    process: subprocess.Popen[str]


@contextlib.contextmanager
def listening(process: subprocess.Popen[str], name: str, log: str, stop_seconds: float) -> Iterator[Listening]:
    """Read the URL that the server prints first; terminate it at the end, and kill it after so many seconds.

    Raises ConfigurationError, which points to `log`, when it ends without a word. Its output must be piped.
    """
    assert process.stdout is not None
    try:
        found = re.search(r"http://[^\s\"]+", process.stdout.readline())
        if found is None:
            raise ConfigurationError(f"{name} ended with exit code {process.wait()}; {log} says why")
        yield Listening(found[0], process)
    finally:
        process.terminate()
        try:
            process.wait(stop_seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()
