"""Processor time by the part of the program that spent it, as Linux counts it in /proc."""

from __future__ import annotations

import contextlib
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
TICK_SECONDS = 1 / os.sysconf("SC_CLK_TCK")
PARTS = {"foveal.vision": "prep", "foveal.gpu": "worker", "spawn_main": "generator"}
"""What a command line tells of a process below ours."""

Threads = Mapping[int, Mapping[int, float]]
"""Seconds of each thread, by process and thread."""


@dataclass(frozen=True)
class CpuReading:
    """Processor seconds until one moment."""

    parts: Mapping[str, Threads]
    machine_busy: float
    """Of all cores together."""


@dataclass(frozen=True)
class CpuShare:
    """What one part took of processor time between two readings, in cores."""

    cores: float
    mean_process: float
    busiest_process: float
    busiest_thread: float


def read(server: int) -> CpuReading:
    """All processes below this one; `server` is the pid of the server's first process."""
    parts: dict[str, dict[int, dict[int, float]]] = defaultdict(dict)
    for pid in _descendants(os.getpid()):
        if (part := "server" if pid == server else _part(pid)) is not None:
            parts[part][pid] = dict(_threads(pid))
    return CpuReading(parts, _machine_busy())


def shares(before: CpuReading, after: CpuReading, seconds: float) -> dict[str, CpuShare]:
    """By part; processes that are not in both readings are left out."""
    found = {}
    for part, processes in after.parts.items():
        spent = [
            [cpu - before.parts[part][pid].get(tid, 0.0) for tid, cpu in threads.items()]
            for pid, threads in processes.items()
            if pid in before.parts.get(part, {})
        ]
        whole = [sum(threads) / seconds for threads in spent]
        if whole:
            most = max(max(threads, default=0.0) for threads in spent) / seconds
            found[part] = CpuShare(sum(whole), sum(whole) / len(whole), max(whole), most)
    return found


def machine_share(before: CpuReading, after: CpuReading, seconds: float) -> float:
    """Busy share of all cores that this machine has."""
    return (after.machine_busy - before.machine_busy) / seconds / (os.cpu_count() or 1)


def _descendants(root: int) -> Iterator[int]:
    children: dict[int, list[int]] = defaultdict(list)
    for entry in PROC.iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):  # it ended meanwhile
                children[int(_stat(entry)[1])].append(int(entry.name))
    waiting = [root]
    while waiting:
        below = children[waiting.pop()]
        yield from below
        waiting += below


def _part(pid: int) -> str | None:
    try:
        line = (PROC / str(pid) / "cmdline").read_text()
    except OSError:
        return None
    return next((part for word, part in PARTS.items() if word in line), None)


def _threads(pid: int) -> Iterator[tuple[int, float]]:
    with contextlib.suppress(OSError):
        for task in (PROC / str(pid) / "task").iterdir():
            with contextlib.suppress(OSError):
                fields = _stat(task)
                yield int(task.name), (int(fields[11]) + int(fields[12])) * TICK_SECONDS


def _stat(folder: Path) -> list[str]:
    """The fields from the state on; the name before them may hold spaces and brackets."""
    return (folder / "stat").read_text().rpartition(")")[2].split()


def _machine_busy() -> float:
    fields = [int(text) for text in (PROC / "stat").read_text().splitlines()[0].split()[1:9]]
    idle = fields[3] + fields[4]
    return (sum(fields) - idle) * TICK_SECONDS
