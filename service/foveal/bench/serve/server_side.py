"""What the server says of itself: readiness, /info, and its counters before and after a step."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from foveal.errors import ConfigurationError
from foveal_client import InvalidEnvironment
from foveal_client._http import Network

POLL_SECONDS = 0.25
COUNTERS = (
    "foveal_tokens_total",
    "foveal_padding_tokens_total",
    "foveal_cache_hits_total",
    "foveal_cache_misses_total",
    "foveal_pack_items_sum",
    "foveal_pack_items_count",
    "foveal_graph_replays_total",
    "foveal_worker_restarts_total",
)


class ServerSide:
    """Asks one server; its counters are left out where /metrics cannot be read."""

    def __init__(self, url: str, api_key: str | None) -> None:
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        try:
            network = Network.straight_to([url])
        except InvalidEnvironment as error:
            raise ConfigurationError(str(error)) from None
        self._http = network.client(base_url=url, headers=headers, timeout=10.0)

    def close(self) -> None:
        """Close its connections."""
        self._http.close()

    def wait_ready(self, seconds: float) -> None:
        """Return when /ready says yes; raises ConfigurationError when it does not in time."""
        end, why, pause = time.monotonic() + seconds, "nobody answered", threading.Event()
        while True:
            try:
                answer = self._http.get("/ready")
                if answer.status_code == 200:
                    return
                why = answer.text[:200]
            except httpx.HTTPError as error:
                why = str(error)
            if time.monotonic() >= end:
                raise ConfigurationError(f"{self._http.base_url} is not ready after {seconds:g} s: {why}")
            pause.wait(POLL_SECONDS)

    def info(self) -> dict[str, Any]:
        """/info, to be kept beside the figures."""
        try:
            found = self._http.get("/info").json()
        except (httpx.HTTPError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def counters(self) -> dict[str, float]:
        """Sums over labels of the counters above; empty where they cannot be read."""
        try:
            answer = self._http.get("/metrics")
            return sums(answer.text) if answer.status_code == 200 else {}
        except (httpx.HTTPError, ValueError):  # a proxy may answer with anything
            return {}


def sums(text: str) -> dict[str, float]:
    """The wanted samples of an exposition, added up over their labels."""
    found = dict.fromkeys(COUNTERS, 0.0)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name in found:
                found[sample.name] += sample.value
    return found


def compared(before: Mapping[str, float], after: Mapping[str, float], seconds: float) -> dict[str, float]:
    """Rates and shares of the time between two readings; empty where one of them failed."""
    if not before or not after:
        return {}
    grew = {name.removeprefix("foveal_").removesuffix("_total"): after[name] - before[name] for name in COUNTERS}
    asked = grew["cache_hits"] + grew["cache_misses"]
    return {
        "tokens_per_second": grew["tokens"] / seconds,
        "padding_share": _ratio(grew["padding_tokens"], grew["padding_tokens"] + grew["tokens"]),
        "items_per_pack": _ratio(grew["pack_items_sum"], grew["pack_items_count"]),
        "graph_share": _ratio(grew["graph_replays"], grew["pack_items_count"]),
        "cache_hit_share": _ratio(grew["cache_hits"], asked),
        "restarts": grew["worker_restarts"],
    }


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
