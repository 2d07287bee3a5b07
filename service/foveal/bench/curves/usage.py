"""What was busy during a step: read at its two ends, and at its middle where a gauge tells only one moment."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import httpx
from prometheus_client.parser import text_string_to_metric_families

from foveal.bench.curves import cpu, device
from foveal_client._http import Network

FULL = 0.85
"""A part that is busy so much of the time can hardly take more without a queue before it."""
POLL_SECONDS = 0.25


@dataclass(frozen=True)
class Usage:
    """Shares from 0 to 1, each of what that part has at most."""

    gpu: float
    """Replays times their measured milliseconds; what NVML tells where the server counts none."""
    nvml: float
    """Share of the time in which any kernel ran."""
    prep: float
    """Mean of the prep processes."""
    api: float
    """Busiest thread of the server's first process: in the service its event loop."""
    worker: float
    """Busiest thread of a worker process; a thread that waits for the device may count as busy."""
    generator: float
    """Busiest process."""
    machine: float
    """All cores."""
    cores: Mapping[str, float]
    """Cores that each part took."""
    loop_lag_ms: float
    egress_mb_per_second: float
    items_per_pack: float

    @property
    def busiest(self) -> str:
        """The part that is nearest to its limit, and how near."""
        parts = {"GPU": self.gpu, "prep": self.prep, "api": self.api, "generator": self.generator}
        parts["machine"] = self.machine
        if self.gpu == 0:  # on a CPU the worker is the device
            parts["worker"] = self.worker
        name, share = max(parts.items(), key=lambda pair: pair[1])
        return f"{name} {share:.0%}" if share >= FULL else f"none full; {name} {share:.0%}"


@dataclass(frozen=True)
class Reading:
    """One moment."""

    at: float
    cpu: cpu.CpuReading
    samples: Mapping[str, float]
    """Of /metrics, added up over labels; empty where there is none."""
    replays: Mapping[str, float]
    """By budget."""


class Observer:
    """Reads in a thread of its own while a step runs."""

    def __init__(self, url: str, server_pid: int, budgets: Mapping[str, float]) -> None:
        self._http = Network.straight_to([url]).client(base_url=url, timeout=10.0)
        self._pid, self._budgets = server_pid, budgets
        self._readings: list[Reading] = []
        self._ask_gpu = device.utilization()
        self._busy: list[float] = []

    def close(self) -> None:
        """Close the connection."""
        self._http.close()

    def start(self, delays: Sequence[float]) -> threading.Thread:
        """Read after each of these seconds from now, in a thread to be joined before `usage`."""
        self._readings, self._busy = [], []
        thread = threading.Thread(target=self._read_at, args=([time.monotonic() + delay for delay in delays],))
        thread.start()
        return thread

    def usage(self) -> Usage:
        """Between the first and the last reading."""
        return usage(self._readings, self._budgets, statistics.fmean(self._busy or [0.0]))

    def _read_at(self, moments: list[float]) -> None:
        pause = threading.Event()
        for moment in moments:
            while (left := moment - time.monotonic()) > 0:
                pause.wait(min(left, POLL_SECONDS))
                if self._readings and self._ask_gpu is not None:
                    self._busy.append(self._ask_gpu())
            samples, replays = read_metrics(self._http)
            self._readings.append(Reading(time.monotonic(), cpu.read(self._pid), samples, replays))


def read_metrics(http: httpx.Client) -> tuple[dict[str, float], dict[str, float]]:
    """Sums over labels, and replays by budget; empty where the server has no /metrics."""
    answer = http.get("/metrics")
    sums: dict[str, float] = {}
    replays: dict[str, float] = {}
    if answer.status_code != 200:
        return sums, replays
    for family in text_string_to_metric_families(answer.text):
        for sample in family.samples:
            sums[sample.name] = sums.get(sample.name, 0.0) + sample.value
            if sample.name == "foveal_graph_replays_total":
                budget = sample.labels["budget"]
                replays[budget] = replays.get(budget, 0.0) + sample.value
    return sums, replays


def usage(readings: list[Reading], budgets: Mapping[str, float], nvml: float) -> Usage:
    """What happened between the first reading and the last."""
    first, last = readings[0], readings[-1]
    seconds = last.at - first.at
    parts = cpu.shares(first.cpu, last.cpu, seconds)
    none = cpu.CpuShare(0.0, 0.0, 0.0, 0.0)

    def grew(name: str) -> float:
        return last.samples.get(name, 0.0) - first.samples.get(name, 0.0)

    packs = grew("foveal_pack_items_count")
    return Usage(
        gpu=device.replay_share(first.replays, last.replays, budgets, seconds) or nvml,
        nvml=nvml,
        prep=parts.get("prep", none).mean_process,
        api=parts.get("server", none).busiest_thread,
        worker=parts.get("worker", none).busiest_thread,
        generator=parts.get("generator", none).busiest_process,
        machine=cpu.machine_share(first.cpu, last.cpu, seconds),
        cores={part: share.cores for part, share in parts.items()},
        loop_lag_ms=1000 * max(r.samples.get("foveal_loop_lag_seconds", 0.0) for r in readings),
        egress_mb_per_second=grew("foveal_egress_bytes_total") / 1e6 / seconds,
        items_per_pack=grew("foveal_pack_items_sum") / packs if packs else 0.0,
    )
