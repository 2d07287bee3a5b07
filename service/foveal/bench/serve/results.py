"""From samples to the figures of one step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from foveal.bench.serve.generator import STAGES, Samples

PERCENTILES = {"p50": 50.0, "p90": 90.0, "p99": 99.0, "p99.9": 99.9, "max": 100.0}
CURVE_POINTS = 200


@dataclass(frozen=True)
class StepResult:
    """One rate. Latencies are of answers that were given; milliseconds from the moment each request was due."""

    label: str
    offered_per_second: float
    answered_per_second: float
    images_per_second: float
    num_requests: int
    """Counted ones: those of the warm-up are sent, not counted."""
    latency_ms: Mapping[str, float]
    stages_ms: Mapping[str, Mapping[str, float]]
    """The server's own account: mean, p50 and p99 of each stage; `outside` is what it did not see."""
    errors: Mapping[str, int]
    error_share: float
    """Without the codes that were accepted."""
    answer_mb_per_second: float
    lag_p99_ms: float
    generator_cpu: float
    """Of one core, by the busiest generator process."""
    num_waits: int
    curve_ms: tuple[float, ...]
    """Quantiles of latency at equal steps from 0 to 1: the whole distribution, to draw or compare."""
    server: Mapping[str, float]
    """What its counters say of the step, warm-up included."""

    @property
    def num_answered(self) -> int:
        """Requests that got what they asked for."""
        return self.num_requests - sum(self.errors.values())

    @property
    def keeps_up(self) -> bool:
        """True if it answered nearly as fast as it was asked."""
        return self.answered_per_second >= 0.95 * self.offered_per_second


@dataclass(frozen=True)
class Window:
    """Which samples of a step count, and what they carry."""

    label: str
    warm_up_seconds: float
    seconds: float
    images_per_request: int = 1
    accepted_codes: frozenset[str] = frozenset()


def summarize(samples: Samples, window: Window, server: Mapping[str, float]) -> StepResult:
    """The figures of a step."""
    counted = samples.due >= window.warm_up_seconds
    is_ok = counted & (samples.codes == _number(samples, "ok"))
    errors = {
        name: int(np.count_nonzero(counted & (samples.codes == i)))
        for i, name in enumerate(samples.code_names)
        if name != "ok"
    }
    refused = sum(n for name, n in errors.items() if name not in window.accepted_codes)
    num_requests, num_ok = int(np.count_nonzero(counted)), int(np.count_nonzero(is_ok))
    span = _span(samples, window, counted)
    latency = samples.latency[is_ok] * 1000.0
    return StepResult(
        label=window.label,
        offered_per_second=num_requests / window.seconds,
        answered_per_second=num_ok / span,
        images_per_second=num_ok * window.images_per_request / span,
        num_requests=num_requests,
        latency_ms=percentiles(latency),
        stages_ms=_stages(samples, is_ok, latency),
        errors={name: n for name, n in errors.items() if n},
        error_share=refused / max(num_requests, 1),
        answer_mb_per_second=float(samples.num_bytes[is_ok].sum()) / 1e6 / span,
        lag_p99_ms=percentiles(samples.lag[counted] * 1000.0)["p99"],
        generator_cpu=samples.cpu_seconds / samples.wall_seconds,
        num_waits=samples.num_waits,
        curve_ms=tuple(_quantiles(latency, np.linspace(0, 100, CURVE_POINTS + 1))),
        server=server,
    )


def percentiles(values: npt.NDArray[np.floating]) -> dict[str, float]:
    """By name, and the mean; zeros where there is nothing."""
    found = dict(zip(PERCENTILES, _quantiles(values, list(PERCENTILES.values())), strict=True))
    return found | {"mean": float(values.mean()) if len(values) else 0.0}


def _quantiles(values: npt.NDArray[np.floating], at: npt.ArrayLike) -> list[float]:
    # "higher": a percentile is a latency that somebody had
    asked = np.asarray(at, np.float64)
    found = np.percentile(values, asked, method="higher") if len(values) else np.zeros(len(asked))
    return [round(float(value), 4) for value in found]


def _stages(
    samples: Samples, is_ok: npt.NDArray[np.bool_], latency: npt.NDArray[np.floating]
) -> dict[str, dict[str, float]]:
    table = samples.stages[is_ok] * 1000.0
    columns = {name: table[:, i] for i, name in enumerate(STAGES)}
    columns["outside"] = np.maximum(latency - columns["total"], 0.0)
    kept = ("mean", "p50", "p99")
    return {name: {key: percentiles(column)[key] for key in kept} for name, column in columns.items()}


def _span(samples: Samples, window: Window, counted: npt.NDArray[np.bool_]) -> float:
    """Seconds in which the counted requests were answered: the window, and what the last of them took beyond it."""
    ends = samples.due[counted] + samples.latency[counted]
    last = float(ends.max()) - window.warm_up_seconds if len(ends) else 0.0
    # answers of the last moments always come a little later; only a server that falls behind is charged for it
    return max(window.seconds, last if last > 1.05 * window.seconds else 0.0)


def _number(samples: Samples, name: str) -> int:
    return samples.code_names.index(name) if name in samples.code_names else -1
