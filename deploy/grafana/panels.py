"""The first panels of the dashboard, for whoever is on call: healthy, fast, full. panels_of_work.py has the others."""

from __future__ import annotations

from queries import (
    ASKED,
    FAILED,
    GOOD_ABOVE_ZERO,
    HERE,
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
            [
                (quantile(q, "foveal_loop_lag_seconds", HERE, "instance"), f"{{{{instance}}}} {name}")
                for q, name in ((0.5, "median"), (0.99, "p99"), (1, "worst"))
            ],
            "Of what is due at any moment: every request waits so long at every step.",
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
            "tokens: encoders are full. bytes: memory is. handover: too much is held for LLM servers.",
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
}
