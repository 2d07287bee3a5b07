"""Every metric: names, labels, buckets, in one `Metrics(registry)` that lives in the api process.

Workers report numbers in their replies and the api counts them, so no multi-process mode is needed and
counters stay right across worker restarts.
"""

from __future__ import annotations

import itertools
import re

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from foveal.errors import BY_CODE

LATENCY = (
    0.0005, 0.001, 0.002, 0.004, 0.006, 0.008, 0.012, 0.016, 0.024, 0.032, 0.05,
    0.075, 0.1, 0.15, 0.25, 0.4, 0.6, 1.0, 1.5, 2.5, 5.0, 10.0, 20.0, 30.0,
)  # fmt: skip
TOKENS = tuple(float(2**i) for i in range(4, 16))
ITEMS = (1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 48.0, 64.0, 128.0)
RATIO = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0)
STAGES = ("fetch", "probe", "prep", "queue", "copy_in", "encode", "copy_out", "serialize")
HANDOVER_OUTCOMES = ("promised", "fetched", "expired", "refused", "missed")
OUTCOMES = ("encoded", "cache_hit", "coalesced", "rejected", "failed", "cancelled")
GATEWAY_OUTCOMES = ("answered", "llm_error", "refused", "unreachable", "slow", "broken_off", "gone")
SGLANG_BACKENDS = ("tokenizer", "scheduler")
SGLANG_OUTCOMES = ("sent", "refused", "failed", "undelivered", "gone")
REJECTIONS = ("tokens", "bytes", "deadline", "draining", "handover")
PACK_KINDS = {
    "cpu": (("eager", "cpu"), ("eager", "oversize"), ("eager", "no_budgets"), ("given_up", "unwanted")),
    "cuda": (("graph", ""), ("eager", "not_captured"), ("eager", "oversize"), ("eager", "no_budgets")),
}
"""How packs run on a device, and why: mode and reason. Those that nobody waits for any more are left unfinished."""
GONE = 499
"""Status in log and metrics of a caller who left before an answer; nobody receives it."""
EXEMPLAR_RUNES = 128
"""What OpenMetrics lets the labels of an exemplar have, names and values together."""
_PLAIN_ID = re.compile(r"[\w.:/@+-]+", re.ASCII)


def exemplar(request_id: str, trace_id: str = "") -> dict[str, str]:
    """The labels that lead from a bucket to a request.

    Of an id that is too long the head is kept: it is enough to find the log line. An id with a character that some
    reader of OpenMetrics might stumble over is left out: no caller's text may spoil a scrape.
    """
    labels = {"trace_id": trace_id} if trace_id else {}
    if not _PLAIN_ID.fullmatch(request_id):
        return labels
    left = EXEMPLAR_RUNES - len("request_id") - sum(len(name) + len(value) for name, value in labels.items())
    return labels | {"request_id": request_id[:left]}


class Metrics:
    """The families of the contract, all there from the start."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        self._requests(registry)
        self._packs(registry)
        self._load(registry)
        self._workers(registry)
        self._gateway(registry)
        self._gpus(registry)
        # series that are there before their first event: `rate` does not see what a series is born with
        self.stages = {stage: self.stage_seconds.labels(stage) for stage in STAGES}
        self.outcomes = {outcome: self.images.labels(outcome) for outcome in OUTCOMES}
        for outcome in GATEWAY_OUTCOMES:
            self.gateway_requests.labels(outcome)
        for outcome in HANDOVER_OUTCOMES:
            self.handover.labels(outcome)
        for reason in REJECTIONS:
            self.admission_rejections.labels(reason)
        for backend, outcome in itertools.product(SGLANG_BACKENDS, SGLANG_OUTCOMES):
            self.sglang_parts.labels(backend, outcome)

    def expect_route(self, route: str, does_work: bool) -> None:
        """The series of one route; all refusals there are where it does work."""
        self.request_seconds.labels(route)
        self.requests.labels(route, "200", "ok")
        if does_work:
            for status in (200, GONE):
                self.requests.labels(route, str(status), "gone")
            for code, error in BY_CODE.items():
                self.requests.labels(route, str(error.status), code)

    def expect_packs(self, worker: str, device: str) -> None:
        """The series of one worker's packs."""
        for mode, reason in PACK_KINDS[device]:
            self.packs.labels(worker, mode, reason)

    def _requests(self, r: CollectorRegistry) -> None:
        self.requests = Counter("foveal_requests", "Answered requests", ["route", "status", "code"], registry=r)
        self.request_seconds = Histogram(
            "foveal_request_seconds", "From first byte to answer", ["route"], registry=r, buckets=LATENCY
        )
        self.stage_seconds = Histogram(
            "foveal_stage_seconds", "Time of one stage", ["stage"], registry=r, buckets=LATENCY
        )
        self.images = Counter("foveal_images", "Images by what became of them", ["outcome"], registry=r)
        self.sglang_parts = Counter(
            "foveal_sglang_parts", "Parts of SGLang's requests by their end", ["backend", "outcome"], registry=r
        )
        self.tokens = Counter("foveal_tokens", "Tokens encoded", registry=r)
        self.patches = Counter("foveal_patches", "Patches encoded", registry=r)
        self.egress_bytes = Counter("foveal_egress_bytes", "Bytes of answers", registry=r)

    def _packs(self, r: CollectorRegistry) -> None:
        self.padding_tokens = Counter("foveal_padding_tokens", "Rows of budgets that carried no item", registry=r)
        self.packs = Counter("foveal_packs", "Packs run", ["worker", "mode", "reason"], registry=r)
        self.pack_items = Histogram("foveal_pack_items", "Items in a pack", registry=r, buckets=ITEMS)
        self.pack_tokens = Histogram("foveal_pack_tokens", "Tokens in a pack", registry=r, buckets=TOKENS)
        self.pack_fill_ratio = Histogram(
            "foveal_pack_fill_ratio", "Tokens of a pack / its budget", registry=r, buckets=RATIO
        )
        self.graph_replays = Counter("foveal_graph_replays", "Graph replays", ["worker", "budget"], registry=r)

    def _load(self, r: CollectorRegistry) -> None:
        self.queue_items = Gauge("foveal_queue_items", "Entries waiting to be packed", registry=r)
        self.queue_tokens = Gauge("foveal_queue_tokens", "Tokens waiting to be packed", registry=r)
        self.inflight_items = Gauge("foveal_inflight_items", "Images admitted and not yet encoded", registry=r)
        self.inflight_bytes = Gauge("foveal_inflight_bytes", "Bytes held by open requests", registry=r)
        self.arena_bytes = Gauge("foveal_arena_bytes", "Shared memory in use", ["arena"], registry=r)
        self.arena_size_bytes = Gauge("foveal_arena_size_bytes", "Its bound", ["arena"], registry=r)
        self.prep_queue_items = Gauge("foveal_prep_queue_items", "Pictures waiting for a prep process", registry=r)
        self.admission_rejections = Counter(
            "foveal_admission_rejections", "Refused at the door", ["reason"], registry=r
        )
        self.cache_bytes = Gauge("foveal_cache_bytes", "Bytes in the encoder cache", registry=r)
        self.cache_entries = Gauge("foveal_cache_entries", "Embeddings in the encoder cache", registry=r)
        self.cache_hits = Counter("foveal_cache_hits", "Encoder cache hits", registry=r)
        self.cache_misses = Counter("foveal_cache_misses", "Encoder cache misses", registry=r)
        self.cache_evictions = Counter("foveal_cache_evictions", "Embeddings dropped for room", registry=r)
        self.handover_bytes = Gauge("foveal_handover_bytes", "Bytes held until they are fetched", registry=r)
        self.handover_entries = Gauge("foveal_handover_entries", "Embeddings held until they are fetched", registry=r)
        self.handover = Counter(
            "foveal_handover", "Embeddings held for LLM servers, by what became of them", ["outcome"], registry=r
        )
        self.storage_bytes = Gauge("foveal_ec_shared_storage_bytes", "Bytes of published files", registry=r)
        self.loop_lag_seconds = Histogram(
            "foveal_loop_lag_seconds", "Lateness of the api's event loop at any moment", registry=r, buckets=LATENCY
        )

    def _gateway(self, r: CollectorRegistry) -> None:
        self.gateway_requests = Counter(
            "foveal_gateway_requests", "Requests for the LLM servers by what became of them", ["outcome"], registry=r
        )
        self.gateway_open_requests = Gauge("foveal_gateway_open_requests", "Open at the LLM servers", registry=r)
        self.gateway_upstream_up = Gauge(
            "foveal_gateway_upstream_up",
            "0 while an LLM server cannot be reached, or does not answer",
            ["upstream"],
            registry=r,
        )
        self.gateway_ejections = Counter(
            "foveal_gateway_ejections", "Times that an LLM server could not be reached", ["upstream"], registry=r
        )
        self.gateway_seconds = Histogram(
            "foveal_gateway_seconds",
            "From handing a request to an LLM server to the first byte of the answer's body",
            registry=r,
            buckets=(*LATENCY, 60.0, 120.0, 300.0),
        )

    def _workers(self, r: CollectorRegistry) -> None:
        self.worker_up = Gauge("foveal_worker_up", "1 when the worker is ready", ["worker"], registry=r)
        self.worker_restarts = Counter("foveal_worker_restarts", "Children lost", ["worker", "kind"], registry=r)
        self.graph_memory_bytes = Gauge("foveal_graph_memory_bytes", "Memory of all graphs", ["worker"], registry=r)
        self.gpu_memory_bytes = Gauge("foveal_gpu_memory_bytes", "Device memory", ["worker", "kind"], registry=r)
        self.build_info = Gauge("foveal_build_info", "Always 1", ["version", "model", "family"], registry=r)

    def _gpus(self, r: CollectorRegistry) -> None:
        """What NVML tells of the devices under the workers; without series where there is no GPU or no NVML."""
        self.gpu_utilization_ratio = Gauge(
            "foveal_gpu_utilization_ratio", "Share of time in which a kernel ran", ["worker"], registry=r
        )
        self.gpu_device_memory_bytes = Gauge(
            "foveal_gpu_device_memory_bytes", "Memory of the device, of all its users", ["worker", "kind"], registry=r
        )
        self.gpu_clock_hertz = Gauge("foveal_gpu_clock_hertz", "Clocks now", ["worker", "clock"], registry=r)
        self.gpu_throttled = Gauge(
            "foveal_gpu_throttled", "1 while clocks are held down for this reason", ["worker", "reason"], registry=r
        )
        self.gpu_ecc_uncorrected_errors = Gauge(
            "foveal_gpu_ecc_uncorrected_errors", "Since the driver was loaded", ["worker"], registry=r
        )
        self.gpu_temperature_celsius = Gauge("foveal_gpu_temperature_celsius", "Of the chip", ["worker"], registry=r)
        self.gpu_power_watts = Gauge("foveal_gpu_power_watts", "Drawn by the board", ["worker"], registry=r)
