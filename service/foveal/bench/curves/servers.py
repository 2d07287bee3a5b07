"""The two servers as child processes: the service, and the plain one; their logs go to files."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from foveal.errors import ConfigurationError
from foveal.own_server import listening
from foveal.settings import process_environment
from foveal_client._http import Network

START_SECONDS = 180.0
STOP_SECONDS = 20
POLL_SECONDS = 0.2


@dataclass(frozen=True)
class Running:
    """A server that has said where it listens."""

    name: str
    url: str
    pid: int
    command: Sequence[str]
    info: dict[str, Any] = field(default_factory=dict)

    @property
    def budgets(self) -> list[dict[str, Any]]:
        """Measured token budgets; none of a plain server or on the CPU."""
        return list(self.info.get("budgets", []))


def service_command(flags: Sequence[str]) -> list[str]:
    """`foveal serve` as it would run in production, but for the cache: no picture comes twice."""
    fixed = ("--port", "0", "--load-format", "dummy", "--cache-bytes", "0", "--log-level", "warning")
    return [sys.executable, "-m", "foveal", "serve", *fixed, *flags]


def plain_command(flags: Sequence[str]) -> list[str]:
    """The plain server."""
    return [sys.executable, "-m", "foveal.bench.curves.plain_server", *flags]


@contextlib.contextmanager
def running(name: str, command: Sequence[str], log: Path) -> Iterator[Running]:
    """Start a server and wait until it is as fast as it will be: all graphs captured and measured."""
    with log.open("w") as sink:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=sink, text=True, env=process_environment(), start_new_session=True
        )
    with listening(process, name, str(log), STOP_SECONDS) as server:
        yield Running(name, server.url, process.pid, command, _until_ready(server.url, process, log))


def _until_ready(url: str, process: subprocess.Popen[str], log: Path) -> dict[str, Any]:
    end, pause, why = time.monotonic() + START_SECONDS, threading.Event(), "nobody answered"
    with Network.straight_to([url]).client(base_url=url, timeout=10.0) as http:
        while time.monotonic() < end:
            if process.poll() is not None:
                raise ConfigurationError(f"{url} ended with exit code {process.returncode}; {log} says why")
            with contextlib.suppress(httpx.HTTPError):
                answer = http.get("/ready")
                why = answer.text[:200]
                if answer.status_code == 200 and is_settled(info := http.get("/info").json()):
                    return dict(info)
            pause.wait(POLL_SECONDS)
    raise ConfigurationError(f"{url} is not ready after {START_SECONDS:g} s: {why}; {log} may say more")


def is_settled(info: dict[str, Any]) -> bool:
    """True if no worker captures graphs any more."""
    return all(worker["stage"] == "ready" for worker in info.get("workers", []))
