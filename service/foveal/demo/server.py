"""A server of one's own for as long as a `with` lasts: `foveal serve --port 0` as a child process."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator, Sequence

from foveal.own_server import listening

STOP_SECONDS = 30


@contextlib.contextmanager
def serving(flags: Sequence[str]) -> Iterator[str]:
    """The URL of a fresh server that has said where it listens; it may still be starting its workers."""
    command = [sys.executable, "-m", "foveal", "serve", "--port", "0", "--log-format", "text", *flags]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    with listening(process, "the server", "its log above", STOP_SECONDS) as server:
        yield server.url
