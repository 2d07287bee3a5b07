"""The panels of the dashboard, row by row: each row is a question, each panel part of its answer."""

from __future__ import annotations

from queries import (
    ALL_WELL,
    ASKED,
    FAILED,
    FAILURES,
    FRESH,
    GOOD_ABOVE_ZERO,
    HERE,
    HITS,
    NO_GPU,
    PADDING,
    WORK,
    Panel,
    mean,
    quantile,
    rate,
    share,
    stat,
)

ROWS: dict[str, list[Panel]] = {
    "Is it healthy?": [
        stat(
            "Instances up",
            "short",
            'sum(up{job="foveal",instance=~"$instance"})',
            "Servers that answer /metrics.",
            GOOD_ABOVE_ZERO,
        ),
        stat(
            "Workers ready",
            "short",
            f"sum(foveal_worker_up{{{HERE}}})",
            "Processes that can take a pack now.",
            GOOD_ABOVE_ZERO,
        ),
        stat(
            "Workers down",
            "short",
            f"count(foveal_worker_up{{{HERE}}}) - sum(foveal_worker_up{{{HERE}}})",
            "Starting, or dead and being started again.",
            [(None, "green"), (1, "red")],
        ),
        stat(
            "Failed requests",
            "percentunit",
            f"({FAILED} / {ASKED}) or vector(0)",
            "Share of requests with any code but ok, callers' own mistakes included.",
            [(None, "green"), (0.01, "orange"), (0.05, "red")],
        ),
        stat(
            "p99",
            "s",
            quantile(0.99, "foveal_request_seconds", WORK),
            "From the first byte of a request to its answer.",
            [(None, "green"), (1, "orange"), (2, "red")],
        ),
        stat(
            "Children lost, 1 h",
            "short",
            f"sum(increase(foveal_worker_restarts_total{{{HERE}}}[1h]))",
            "Workers and decoders that ended and were started again.",
            [(None, "green"), (1, "orange"), (5, "red")],
        ),
    ],
    "Is it fast?": [
        Panel(
            "Latency",
            "s",
            [(quantile(q, "foveal_request_seconds", WORK), f"p{q * 100:g}") for q in (0.5, 0.9, 0.99)],
            "Of requests for embeddings, first byte to answer.",
        ),
        Panel(
            "Where the time goes, mean of each stage",
            "s",
            [(mean("foveal_stage_seconds", "stage"), "{{stage}}")],
            "Of those images that went through the stage. Queue: too few workers. Prep: too few decoders.",
            stacked=True,
        ),
        Panel(
            "p99 of each stage",
            "s",
            [(quantile(0.99, "foveal_stage_seconds", HERE, "stage"), "{{stage}}")],
            "The stage that makes the tail.",
        ),
        Panel(
            "Heat map of the chosen stages",
            "s",
            [(rate("foveal_stage_seconds_bucket", HERE + ',stage=~"$stage"', "le"), "{{le}}")],
            "Choose one stage at the top to see its two humps: fresh and cached, small and large.",
            kind="heatmap",
            width=12,
        ),
        Panel(
            "Lateness of the event loop",
            "s",
            [(f"max by (instance) (foveal_loop_lag_seconds{{{HERE}}})", "{{instance}}")],
            "Every request waits at least that long at every step.",
            width=12,
        ),
    ],
    "Is it full?": [
        Panel(
            "Waiting to be packed",
            "short",
            [
                (f"sum(foveal_queue_tokens{{{HERE}}})", "tokens"),
                (f"sum(foveal_queue_items{{{HERE}}})", "images"),
                (f"sum(foveal_prep_queue_items{{{HERE}}})", "images that wait for a decoder"),
            ],
            "Bounded by --max-queue-tokens.",
        ),
        Panel(
            "Admitted and not yet answered",
            "bytes",
            [
                (f"sum(foveal_inflight_bytes{{{HERE}}})", "in flight"),
                (f"sum by (arena) (foveal_arena_bytes{{{HERE}}})", "arena {{arena}}"),
                (f"sum by (arena) (foveal_arena_size_bytes{{{HERE}}})", "bound of {{arena}}"),
            ],
            "Bounded by --max-inflight-bytes; embeddings that the cache keeps lie in their arena too.",
        ),
        Panel(
            "Refused at the door",
            "reqps",
            [(rate("foveal_admission_rejections_total", HERE, "reason"), "{{reason}}")],
            f"tokens: encoders are full. bytes: memory is. {ALL_WELL}",
        ),
        Panel(
            "Fill of packs",
            "percentunit",
            [(quantile(q, "foveal_pack_fill_ratio"), f"p{q * 100:g}") for q in (0.1, 0.5, 0.9)],
            "Tokens of a pack over those of the budget it ran in.",
            width=6,
        ),
        Panel(
            "Padding",
            "percentunit",
            [(share(PADDING, "foveal_tokens_total"), "of what is computed")],
            "Rows that carry no image.",
            width=6,
        ),
        Panel(
            "Images in a pack",
            "short",
            [
                (mean("foveal_pack_items"), "mean"),
                (quantile(0.9, "foveal_pack_items"), "p90"),
            ],
            "Above one: requests share runs.",
            width=6,
        ),
        Panel(
            "Packs by how they ran",
            "ops",
            [(rate("foveal_packs_total", HERE, "mode, reason"), "{{mode}} {{reason}}")],
            "eager with another reason than cpu is a missed graph.",
            width=6,
        ),
    ],
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
    "What fails?": [
        Panel(
            "Requests by code",
            "reqps",
            [(rate("foveal_requests_total", WORK, "code"), "{{code}}")],
            "All of them.",
            width=12,
            stacked=True,
        ),
        Panel(
            "Failures by code",
            "reqps",
            [
                (
                    rate("foveal_requests_total", FAILURES, "status, code"),
                    "{{status}} {{code}}",
                )
            ],
            f"4xx are the callers'. 500 is a bug: its request id is in the log. {ALL_WELL}",
            width=12,
        ),
    ],
}
