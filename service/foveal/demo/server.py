"""A server of one's own for as long as a `with` lasts: `foveal serve --port 0` as a child process."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence

from foveal.errors import ConfigurationError

STOP_SECONDS = 30


@contextlib.contextmanager
def serving(flags: Sequence[str]) -> Iterator[str]:
    """The URL of a fresh server that has said where it listens; it may still be starting its workers."""
    command = [sys.executable, "-m", "foveal", "serve", "--port", "0", "--log-format", "text", *flags]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        found = re.search(r"http://\S+", line)
        if found is None:
            raise ConfigurationError(f"the server ended with exit code {process.wait()}; its log above says why")
        yield found[0]
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()
