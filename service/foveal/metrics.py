"""Every metric: names, labels, buckets, in one `Metrics(registry)` that lives in the api process.

Workers report numbers in their replies and the api counts them, so no multi-process mode is needed and
counters stay right across worker restarts.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

LATENCY = (
    0.0005, 0.001, 0.002, 0.004, 0.006, 0.008, 0.012, 0.016, 0.024, 0.032, 0.05,
    0.075, 0.1, 0.15, 0.25, 0.4, 0.6, 1.0, 1.5, 2.5, 5.0, 10.0, 20.0, 30.0,
)  # fmt: skip
TOKENS = tuple(float(2**i) for i in range(4, 16))
ITEMS = (1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 48.0, 64.0, 128.0)
RATIO = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0)
STAGES = ("fetch", "probe", "prep", "queue", "copy_in", "encode", "copy_out", "serialize")
OUTCOMES = ("encoded", "cache_hit", "coalesced", "rejected", "failed", "cancelled")


class Metrics:
    """The families of the contract, all there from the start."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        self._requests(registry)
        self._packs(registry)
        self._load(registry)
        self._workers(registry)
        for stage in STAGES:
            self.stage_seconds.labels(stage)
        for outcome in OUTCOMES:
            self.images.labels(outcome)

    def _requests(self, r: CollectorRegistry) -> None:
        self.requests = Counter("foveal_requests", "Answered requests", ["route", "status", "code"], registry=r)
        self.request_seconds = Histogram(
            "foveal_request_seconds", "From first byte to answer", ["route"], registry=r, buckets=LATENCY
        )
        self.stage_seconds = Histogram(
            "foveal_stage_seconds", "Time of one stage", ["stage"], registry=r, buckets=LATENCY
        )
        self.images = Counter("foveal_images", "Images by what became of them", ["outcome"], registry=r)
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
        self.loop_lag_seconds = Gauge("foveal_loop_lag_seconds", "Lateness of the api's event loop", registry=r)

    def _workers(self, r: CollectorRegistry) -> None:
        self.worker_up = Gauge("foveal_worker_up", "1 when the worker is ready", ["worker"], registry=r)
        self.worker_restarts = Counter("foveal_worker_restarts", "Children lost", ["worker", "kind"], registry=r)
        self.graph_memory_bytes = Gauge("foveal_graph_memory_bytes", "Memory of all graphs", ["worker"], registry=r)
        self.gpu_memory_bytes = Gauge("foveal_gpu_memory_bytes", "Device memory", ["worker", "kind"], registry=r)
        self.build_info = Gauge("foveal_build_info", "Always 1", ["version", "model", "family"], registry=r)
