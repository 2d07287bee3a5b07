"""How a load test is shown: aligned tables, a JSON file, a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from foveal.bench.figures import save_plot, write_figures
from foveal.bench.serve.results import StepResult
from foveal.errors import ConfigurationError

SHOWN_STAGES = ("fetch", "probe", "prep", "queue", "copy_in", "encode", "copy_out", "total", "outside")
DRAWN_STAGES = tuple(name for name in SHOWN_STAGES if name != "total")
"""They add up to about the latency: stages overlap only where one request has several images."""


def table(steps: Sequence[StepResult]) -> str:
    """A line per step: rates, latency, errors, the generator itself, then the server's stages and counters."""
    heads = ["step", "asked/s", "answered/s", "images/s", "p50", "p90", "p99", "p99.9", "max", "errors", "lag", "cpu"]
    lines = [[*heads]]
    for s in steps:
        times = [f"{s.latency_ms[name]:.1f}" for name in ("p50", "p90", "p99", "p99.9", "max")]
        rates = [f"{value:.1f}" for value in (s.offered_per_second, s.answered_per_second, s.images_per_second)]
        lines.append([s.label, *rates, *times, _errors(s), f"{s.lag_p99_ms:.2f}", f"{s.generator_cpu:.0%}"])
    stages = [["step", *SHOWN_STAGES]]
    stages += [[s.label, *(f"{s.stages_ms[name]['p50']:.2f}" for name in SHOWN_STAGES)] for s in steps]
    text = "latency from the moment a request was due, lag (p99) and cpu of the generator; milliseconds\n"
    text += aligned(lines) + "\n\nmedians of the stages that the server names; outside: network, waiting, generator\n"
    text += aligned(stages)
    counters = list(next((s.server for s in steps if s.server), {}))
    if counters:
        rows = [[s.label, *(f"{s.server.get(name, 0.0):.3g}" for name in counters)] for s in steps]
        text += "\n\nwhat the server counted, warm-up included\n" + aligned([["step", *counters], *rows])
    return text


def aligned(lines: Sequence[Sequence[str]]) -> str:
    """Columns of equal width: the first to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join([line[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(line[1:], widths[1:], strict=True))])
        for line in lines
    )


def write_json(
    path: Path, given: Mapping[str, Any], info: Mapping[str, Any], steps: Sequence[StepResult], said: Mapping[str, Any]
) -> None:
    """Everything that is needed to repeat, compare or draw the run."""
    whole = {"given": given, "server": info, "steps": [asdict(step) for step in steps], **said}
    write_figures(path, whole)


def draw(path: Path, steps: Sequence[StepResult], title: str) -> None:
    """Latency over rate, distributions, stages. Raises ConfigurationError without matplotlib."""
    try:
        import matplotlib
    except ModuleNotFoundError:
        raise ConfigurationError("--plot needs the package matplotlib: pip install 'foveal[demo]'") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (rates, curves, stages) = pyplot.subplots(1, 3, figsize=(17, 5), layout="constrained")
    figure.suptitle(title)
    _draw_rates(rates, steps)
    _draw_curves(curves, steps)
    _draw_stages(stages, steps)
    save_plot(path, figure)
    pyplot.close(figure)


def _draw_rates(axis: Any, steps: Sequence[StepResult]) -> None:
    answered = _answered(axis, steps)
    asked = [step.offered_per_second for step in answered]
    for name in ("p50", "p90", "p99"):
        axis.plot(asked, [step.latency_ms[name] for step in answered], marker="o", label=name)
    for step in answered:
        failed = sum(step.errors.values()) / max(step.num_requests, 1)
        note = f"{failed:.1%} errors" if failed else "" if step.keeps_up else "falls behind"
        axis.annotate(note, (step.offered_per_second, step.latency_ms["p99"]), fontsize=8, rotation=20)
    axis.set(title="latency over rate", xlabel="requests asked a second", ylabel="milliseconds", yscale="log")
    _plain_numbers(axis.yaxis)
    axis.legend()


def _draw_curves(axis: Any, steps: Sequence[StepResult]) -> None:
    for step in _answered(axis, steps):
        shares = [i / (len(step.curve_ms) - 1) for i in range(len(step.curve_ms))]
        axis.plot(step.curve_ms, shares, label=step.label)
    axis.set(title="share of answers within", xlabel="milliseconds", xscale="log", ylim=(0, 1))
    _plain_numbers(axis.xaxis)
    if axis.lines:
        axis.legend()


def _answered(axis: Any, steps: Sequence[StepResult]) -> list[StepResult]:
    """Steps that have latencies to draw on a logarithmic axis; the others are named beside the curves."""
    silent = ", ".join(step.label for step in steps if not step.num_answered)
    if silent:
        axis.text(0.02, 0.97, f"nothing was answered: {silent}", transform=axis.transAxes, va="top", fontsize=8)
    return [step for step in steps if step.num_answered]


def _plain_numbers(axis: Any) -> None:
    """1, 2, 5, 10 ... on a logarithmic axis, and their lines."""
    from matplotlib import ticker

    axis.set_major_locator(ticker.LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(ticker.FormatStrFormatter("%g"))
    axis.set_minor_formatter(ticker.NullFormatter())
    axis.grid(alpha=0.3)


def _draw_stages(axis: Any, steps: Sequence[StepResult]) -> None:
    labels, below = [step.label for step in steps], [0.0] * len(steps)
    for name in DRAWN_STAGES:
        heights = [step.stages_ms[name]["mean"] for step in steps]
        axis.bar(labels, heights, bottom=below, label=name)
        below = [low + height for low, height in zip(below, heights, strict=True)]
    axis.set(title="where the time goes (mean)", ylabel="milliseconds")
    axis.legend(fontsize=8)


def _errors(step: StepResult) -> str:
    return " ".join(f"{name}:{count}" for name, count in sorted(step.errors.items())) or "-"
