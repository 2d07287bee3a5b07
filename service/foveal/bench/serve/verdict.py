"""What may be said of a run: where the generator itself was the limit, and whether the limits were kept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from foveal.bench.serve.results import StepResult

BUSY = 0.85
"""Of a core: above it a generator process can hardly be on time."""
LATE_MS, LATE_SHARE = 2.0, 0.1
"""Lateness that is worth a sentence: this much, and this share of the median latency."""
LIMIT_SHARE = 1.0
"""Lateness at which figures tell more of the generator than of the server: this share of the median latency."""
WAITING_SHARE = 0.01
FEW_REQUESTS = 200


@dataclass(frozen=True)
class Limits:
    """What must hold at every rate; None: not asked."""

    max_p99_ms: float | None = None
    max_error_share: float | None = None

    def broken(self, step: StepResult) -> list[str]:
        """A sentence for each limit that the step broke. A step without a single answer keeps none."""
        found = []
        p99 = step.latency_ms["p99"]
        if self != Limits() and not step.num_answered:
            found.append(f"{step.label}: nothing was answered")
        elif self.max_p99_ms is not None and p99 > self.max_p99_ms:
            found.append(f"{step.label}: p99 is {p99:.1f} ms, above {self.max_p99_ms:g}")
        if self.max_error_share is not None and step.error_share > self.max_error_share:
            codes = ", ".join(f"{name} {count}" for name, count in step.errors.items())
            found.append(
                f"{step.label}: {step.error_share:.2%} of requests failed, above {self.max_error_share:.2%} ({codes})"
            )
        return found


def held(limits: Limits, steps: Sequence[StepResult]) -> str:
    """The highest rate that was kept up with inside the limits, as a sentence."""
    inside = [step for step in steps if step.num_answered and not limits.broken(step)]
    if not inside:
        return "No step was kept up with inside the limits."
    good = [step for step in inside if step.keeps_up]
    best = max(good or inside, key=lambda step: step.answered_per_second)
    if not good:  # what an overload test is for
        return (
            f"No step was kept up with. Inside the limits: {best.label}, of which {best.answered_per_second:.1f}/s "
            f"were answered, at p50 {best.latency_ms['p50']:.1f} ms, p99 {best.latency_ms['p99']:.1f} ms."
        )
    return (
        f"Holds {best.label}: {best.answered_per_second:.1f} answers/s ({best.images_per_second:.1f} images/s) "
        f"at p50 {best.latency_ms['p50']:.1f} ms, p99 {best.latency_ms['p99']:.1f} ms."
    )


def warnings(steps: Sequence[StepResult], num_uncopied: int) -> Iterator[str]:
    """Sentences about figures that are not the server's alone, or rest on little."""
    for step in steps:
        if step.lag_p99_ms > max(LATE_MS, LATE_SHARE * step.latency_ms["p50"]):
            yield _late(step)
        if step.generator_cpu > BUSY:
            yield (
                f"{step.label}: the generator was the limit: one of its processes was busy {step.generator_cpu:.0%} of "
                "the time. Use more --processes."
            )
        if step.num_waits > WAITING_SHARE * step.num_requests:
            yield f"{step.label}: {step.num_waits} requests found every connection in use; see --max-connections."
        if step.num_requests < FEW_REQUESTS:
            yield f"{step.label}: p99 of {step.num_requests} requests rests on one or two of them; run for longer."
    if num_uncopied:
        yield (
            f"{num_uncopied} pictures are neither JPEG nor PNG and are sent unchanged each time: an encoder cache "
            "answers them from the second time on."
        )


def _late(step: StepResult) -> str:
    late = f"sent 1 % of its requests {step.lag_p99_ms:.1f} ms late or later, and that is part of the latencies."
    if step.lag_p99_ms > LIMIT_SHARE * step.latency_ms["p50"]:
        return f"{step.label}: the generator was the limit: it {late} Use more --processes, or another machine."
    return f"{step.label}: the generator {late} The highest of them may be its own."
