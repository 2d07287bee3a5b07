"""Real processes: `foveal serve` on a free port, with the built-in model on the CPU."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from foveal.settings import process_environment

READY_SECONDS = 120
STOP_SECONDS = 30
POLL_SECONDS = 0.05


@dataclass
class Running:
    """A started server: its URL, its process, what it has printed so far."""

    url: str
    process: subprocess.Popen[str]
    lines: list[str] = field(default_factory=list)

    def read_on(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as stdout:
            self.lines.extend(stdout)

    def wait_ready(self) -> None:
        self.until(lambda: httpx.get(self.url + "/ready", trust_env=False).status_code == 200, READY_SECONDS)

    def until(self, holds, seconds: float = 30.0) -> None:  # type: ignore[no-untyped-def]
        """Poll a condition of the server from outside; fail with its log when it never holds."""
        end = time.monotonic() + seconds
        pause = threading.Event()
        while time.monotonic() < end:
            with contextlib.suppress(httpx.TransportError):
                if holds():
                    return
            pause.wait(POLL_SECONDS)
        pytest.fail("never came true; the log:\n" + "".join(self.lines[-40:]))

    def info(self) -> dict:
        return httpx.get(self.url + "/info", trust_env=False).json()

    def metric(self, name: str) -> float:
        text = httpx.get(self.url + "/metrics", trust_env=False, timeout=30).text
        return sum(float(v) for v in re.findall(rf"^{name}(?:\{{.*\}})? (\S+)$", text, re.MULTILINE))

    def gauge(self, name: str, label: str) -> float:
        """One child of a metric with labels, such as `arena="rows"`."""
        text = httpx.get(self.url + "/metrics", trust_env=False, timeout=30).text
        found = re.search(rf"^{name}\{{{label}\}} (\S+)$", text, re.MULTILINE)
        return float(found[1]) if found else 0.0

    def packs(self, mode: str) -> float:
        """Packs that ran in this mode."""
        text = httpx.get(self.url + "/metrics", trust_env=False, timeout=30).text
        found = re.findall(rf'^foveal_packs_total\{{.*mode="{mode}".*\}} (\S+)$', text, re.MULTILINE)
        return sum(map(float, found))

    def is_empty(self) -> bool:
        """Nothing queued, nothing in flight, and of the arenas only what the cache holds."""
        names = ("queue_items", "queue_tokens", "inflight_items", "inflight_bytes", "prep_queue_items")
        held = self.gauge("foveal_arena_bytes", 'arena="embeddings"') - self.metric("foveal_cache_bytes")
        left = [self.metric(f"foveal_{name}") for name in names]
        return not any((*left, held, *(self.gauge("foveal_arena_bytes", f'arena="{a}"') for a in ("images", "rows"))))

    def children(self) -> set[int]:
        """Process ids of all direct children."""
        return children_of(self.process.pid)


def children_of(pid: int) -> set[int]:
    found = set()
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        found |= {int(child) for child in task.read_text().split()}
    return found


REAL = ("foveal", "serve")


def start(*flags: str, program: tuple[str, ...] = REAL, variables: dict[str, str] | None = None) -> Running:
    command = [sys.executable, "-m", *program, "--port", "0", "--device", "cpu", "--log-format", "text", *flags]
    environment = {**process_environment(), **(variables or {})}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
    assert process.stdout is not None
    running = Running("", process)
    for line in process.stdout:
        running.lines.append(line)
        if found := re.search(r"listens on (http://\S+)", line):
            running.url = found[1]
            break
    threading.Thread(target=running.read_on, daemon=True).start()
    return running


@contextlib.contextmanager
def serving(
    *flags: str, ready: bool = True, program: tuple[str, ...] = REAL, variables: dict[str, str] | None = None
) -> Iterator[Running]:
    running = start(*flags, program=program, variables=variables)
    try:
        if ready:
            running.wait_ready()
        yield running
    finally:
        if running.process.poll() is None:
            running.process.terminate()
        try:
            running.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            running.process.kill()
            running.process.wait()


@pytest.fixture(scope="session")
def server() -> Iterator[Running]:
    """One server for all tests that leave it as they found it."""
    with serving("--cpu-workers", "1", "--prep-workers", "1", "--token-budgets", "64,128,512,1024") as running:
        yield running
