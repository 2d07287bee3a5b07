"""The other panels of the dashboard, for whoever looks closer: what the processes, the GPUs and the LLM servers do."""

from __future__ import annotations

from queries import (
    ALL_WELL,
    FAILURES,
    FRESH,
    HERE,
    HITS,
    NO_GPU,
    NO_LLM,
    WORK,
    Panel,
    quantile,
    rate,
    share,
)

ROWS: dict[str, list[Panel]] = {
    "Is it balanced?": [
        Panel(
            "Packs of each worker",
            "ops",
            [(rate("foveal_packs_total", HERE, "instance, worker"), "{{instance}} {{worker}}")],
            "Alike is well.",
        ),
        Panel(
            "Ready workers",
            "short",
            [(f"sum by (instance, worker) (foveal_worker_up{{{HERE}}})", "{{instance}} {{worker}}")],
            "A step down is a death.",
            stacked=True,
        ),
        Panel(
            "Device memory",
            "bytes",
            [
                (f"sum by (worker, kind) (foveal_gpu_memory_bytes{{{HERE}}})", "{{worker}} {{kind}}"),
                (f"sum by (worker) (foveal_graph_memory_bytes{{{HERE}}})", "{{worker}} graphs"),
            ],
            "On the CPU: the weights alone.",
        ),
        Panel(
            "Replays by budget",
            "ops",
            [(rate("foveal_graph_replays_total", HERE, "budget"), "{{budget}}")],
            f"Which graphs earn their memory. {NO_GPU}",
            width=12,
            stacked=True,
        ),
        Panel(
            "Children lost",
            "short",
            [(f"sum by (worker, kind) (increase(foveal_worker_restarts_total{{{HERE}}}[5m]))", "{{kind}} {{worker}}")],
            "In five minutes.",
            width=12,
        ),
    ],
    "Are the GPUs well?": [
        Panel(
            "GPU utilization",
            "percentunit",
            [(f"avg by (instance, worker) (foveal_gpu_utilization_ratio{{{HERE}}})", "{{instance}} {{worker}}")],
            f"Share of time in which a kernel ran, however small. {NO_GPU}",
            width=6,
        ),
        Panel(
            "GPUs held down",
            "short",
            [(f"sum by (reason) (foveal_gpu_throttled{{{HERE}}})", "{{reason}}")],
            f"How many run at lower clocks, and why. power_cap is usual at full load, all else is a fault. {NO_GPU}",
            width=6,
            stacked=True,
        ),
        Panel(
            "GPU clocks",
            "hertz",
            [(f"min by (instance, clock) (foveal_gpu_clock_hertz{{{HERE}}})", "{{instance}} {{clock}}")],
            f"Of the slowest on each host. {NO_GPU}",
            width=6,
        ),
        Panel(
            "GPU memory, all users",
            "bytes",
            [
                (f"sum by (instance, kind) (foveal_gpu_device_memory_bytes{{{HERE}}})", "{{instance}} {{kind}}"),
            ],
            f"What others hold on our GPUs counts here, and not under Device memory. {NO_GPU}",
            width=6,
        ),
        Panel(
            "GPU temperature",
            "celsius",
            [(f"max by (instance, worker) (foveal_gpu_temperature_celsius{{{HERE}}})", "{{instance}} {{worker}}")],
            f"Of the chip. {NO_GPU}",
        ),
        Panel(
            "GPU power",
            "watt",
            [(f"sum by (instance, worker) (foveal_gpu_power_watts{{{HERE}}})", "{{instance}} {{worker}}")],
            f"Of the boards. {NO_GPU}",
        ),
        Panel(
            "GPU memory errors",
            "short",
            [(f"max by (instance, worker) (foveal_gpu_ecc_uncorrected_errors{{{HERE}}})", "{{instance}} {{worker}}")],
            f"Uncorrected, since the driver was loaded. Any is one too many. {NO_GPU}",
        ),
    ],
    "Is it efficient?": [
        Panel("Tokens", "ops", [(rate("foveal_tokens_total", HERE, "instance"), "{{instance}}")], "Encoded a second."),
        Panel(
            "Images by what became of them",
            "ops",
            [(rate("foveal_images_total", HERE, "outcome"), "{{outcome}}")],
            "cache_hit and coalesced cost no encoder.",
            stacked=True,
        ),
        Panel("Answers", "Bps", [(rate("foveal_egress_bytes_total"), "sent")], "Bytes a second on the wire."),
        Panel("Cache hits", "percentunit", [(share(HITS, FRESH), "share")], "Of the pictures that were looked up."),
        Panel("Cache", "bytes", [(f"sum(foveal_cache_bytes{{{HERE}}})", "held")], "Bounded by --cache-bytes."),
        Panel(
            "Cache evictions",
            "ops",
            [(rate("foveal_cache_evictions_total"), "evictions")],
            "Many, while hits are few: the cache is too small to matter, or useless for this traffic.",
        ),
    ],
    "Is it handed over?": [
        Panel(
            "Requests for the LLM servers",
            "reqps",
            [(rate("foveal_gateway_requests_total", HERE, "outcome"), "{{outcome}}")],
            "Of the gateway. refused: by us, before an LLM server was asked; llm_error: answered with an error.",
            width=12,
            stacked=True,
        ),
        Panel(
            "First byte of the LLM servers",
            "s",
            [(quantile(q, "foveal_gateway_seconds"), f"p{q * 100:g}") for q in (0.5, 0.99)],
            f"From handing a request over to the first byte of its answer. {NO_LLM}",
            width=6,
        ),
        Panel(
            "LLM servers",
            "short",
            [
                (f"sum by (upstream) (foveal_gateway_upstream_up{{{HERE}}})", "up: {{upstream}}"),
                (f"sum by (upstream) (increase(foveal_gateway_ejections_total{{{HERE}}}[5m]))", "lost: {{upstream}}"),
                (f"sum(foveal_gateway_open_requests{{{HERE}}})", "open requests"),
            ],
            f"up: instances of foveal that reach it; lost: times in five minutes. {NO_LLM}",
            width=6,
        ),
        Panel(
            "Held embeddings",
            "bytes",
            [
                (f"sum(foveal_handover_bytes{{{HERE}}})", "in memory"),
                (f"sum(foveal_ec_shared_storage_bytes{{{HERE}}})", "in files"),
            ],
            "Until they are fetched; bounded by --handover-bytes and --ec-shared-storage-bytes.",
            width=6,
        ),
        Panel(
            "Number of held embeddings",
            "short",
            [(f"sum(foveal_handover_entries{{{HERE}}})", "in memory")],
            "One that grows and does not fall again is fetched by nobody.",
            width=6,
        ),
        Panel(
            "What became of held embeddings",
            "ops",
            [(rate("foveal_handover_total", HERE, "outcome"), "{{outcome}}")],
            "missed: fetched too late. expired: never fetched within --handover-seconds.",
            width=6,
        ),
        Panel(
            "Parts for SGLang",
            "ops",
            [(rate("foveal_sglang_parts_total", HERE, "backend, outcome"), "{{backend}} {{outcome}}")],
            "undelivered: encoded, and the language server could not be reached.",
            width=6,
        ),
    ],
    "What fails?": [
        Panel(
            "Requests by code",
            "reqps",
            [(rate("foveal_requests_total", WORK, "code") + " > 0", "{{code}}")],
            "All that came.",
            width=12,
            stacked=True,
        ),
        Panel(
            "Failures by code",
            "reqps",
            [
                (
                    rate("foveal_requests_total", FAILURES, "status, code") + " > 0",
                    "{{status}} {{code}}",
                )
            ],
            f"4xx are the callers'. 500 is a bug: its request id is in the log. {ALL_WELL}",
            width=12,
        ),
    ],
}
