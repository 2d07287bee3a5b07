"""`foveal bench report FILE.json`: the tables of `foveal bench curves` again, and a picture of them."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from foveal.bench.figures import plot_path, save_plot
from foveal.bench.serve.report import aligned
from foveal.errors import ConfigurationError

USED = ("gpu", "nvml", "prep", "api", "worker", "generator", "machine")
RATES = (
    "case", "server", "alone p50", "p99", "limit", "holds/s", "p50", "p99", "most/s", "engine/s", "share", "device/s",
)  # fmt: skip
EXPLAINED = (
    "milliseconds. alone: one request after the other. holds/s: highest rate with p99 within the limit, nothing "
    "refused. most/s: answers at any latency.\nengine/s: the same images through queue and worker processes, no HTTP, "
    "no decoding; share: holds/s of it. device/s: its best budget, run without a pause."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of the command."""
    parser.add_argument("file", type=Path, help="what foveal bench curves --json wrote")
    parser.add_argument("--plot", type=plot_path, help="draw here; default: the file's name with .png")


def run(args: argparse.Namespace) -> int:
    """Print and draw; the exit code."""
    try:
        whole: dict[str, Any] = json.loads(args.file.read_text())
        text = tables(whole["cases"])
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise ConfigurationError(f"{args.file} is not what foveal bench curves writes: {error!r}") from None
    print(text)
    draw(args.plot or args.file.with_suffix(".png"), whole["cases"])
    return 0


def tables(cases: Sequence[Mapping[str, Any]]) -> str:
    """Rates and latencies, then what was busy at the knee."""
    rates, used = [list(RATES)], [["case", "server", "at", *USED, "lag ms", "MB/s", "in a pack", "busiest"]]
    for case in cases:
        for curve in case["curves"]:
            rates.append(_rates(case, curve))
            used.append(_used(case, curve))
    return "\n\n".join((EXPLAINED, aligned(rates), "busy share of what each part has", aligned(used), *_ratios(cases)))


def knee_of(curve: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The step that held, or None."""
    return None if curve["knee"] is None else curve["steps"][curve["knee"]]


def _rates(case: Mapping[str, Any], curve: Mapping[str, Any]) -> list[str]:
    knee, alone = knee_of(curve), curve["alone_ms"]
    found = [f"{knee['rate']:.1f}", *(f"{knee['result']['latency_ms'][p]:.1f}" for p in ("p50", "p99"))] if knee else []
    most = max(step["result"]["answered_per_second"] for step in curve["steps"])
    row = [case["name"], curve["server"], f"{alone['p50']:.1f}", f"{alone['p99']:.1f}"]
    row += [f"{curve['limit']['p99_ms']:.1f} ({curve['limit']['rule']})", *(found or ["-", "-", "-"]), f"{most:.1f}"]
    is_ours = curve["server"] == "service" and case["engine_images_per_second"]
    engine = case["engine_images_per_second"]
    share = f"{knee['rate'] / engine:.0%}" if is_ours and knee else "-"
    gpu = case["gpu_images_per_second"]
    return [*row, f"{engine:.1f}" if is_ours else "-", share, f"{gpu:.1f}" if is_ours and gpu else "-"]


def _used(case: Mapping[str, Any], curve: Mapping[str, Any]) -> list[str]:
    step = knee_of(curve) or curve["steps"][0]
    usage = step["usage"]
    row = [case["name"], curve["server"], f"{step['rate']:.1f}/s", *(f"{usage[name]:.0%}" for name in USED)]
    rates = (usage["loop_lag_ms"], step["result"]["answer_mb_per_second"], usage["items_per_pack"])
    return [*row, *(f"{value:.1f}" for value in rates), step["busiest"]]


def _ratios(cases: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for case in cases:
        held = {curve["server"]: knee["rate"] for curve in case["curves"] if (knee := knee_of(curve))}
        if {"service", "plain"} <= held.keys():
            times = held["service"] / held["plain"]
            yield f"{case['name']}: the service holds {times:.1f} times the plain server's rate."


def draw(path: Path, cases: Sequence[Mapping[str, Any]]) -> None:
    """A panel for each case: p50 and p99 over rate. Raises ConfigurationError without matplotlib."""
    try:
        import matplotlib
    except ModuleNotFoundError:
        raise ConfigurationError("a picture needs the package matplotlib: pip install 'foveal[demo]'") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot, ticker

    figure, axes = pyplot.subplots(1, len(cases), figsize=(6 * len(cases), 5), layout="constrained", squeeze=False)
    for axis, case in zip(axes[0], cases, strict=True):
        for curve, colour in zip(case["curves"], ("C0", "C1"), strict=False):
            _draw_curve(axis, curve, colour)
        if case["engine_images_per_second"]:
            axis.axvline(case["engine_images_per_second"], color="C2", linestyle="--", label="engine alone")
        axis.set(title=case["name"], xlabel="requests a second", ylabel="milliseconds", xscale="log", yscale="log")
        for side in (axis.xaxis, axis.yaxis):
            side.set_major_locator(ticker.LogLocator(subs=(1.0, 2.0, 5.0)))
            side.set_major_formatter(ticker.FormatStrFormatter("%g"))
            side.set_minor_formatter(ticker.NullFormatter())
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
    save_plot(path, figure)
    pyplot.close(figure)


def _draw_curve(axis: Any, curve: Mapping[str, Any], colour: str) -> None:
    # where answers are missing, latencies of the others say little
    steps = sorted((step for step in curve["steps"] if not step["result"]["errors"]), key=lambda step: step["rate"])
    rates = [step["rate"] for step in steps]
    for name, style in (("p50", ":"), ("p99", "-")):
        heights = [step["result"]["latency_ms"][name] for step in steps]
        axis.plot(rates, heights, style, color=colour, marker="o", markersize=3, label=f"{curve['server']} {name}")
    axis.axhline(curve["limit"]["p99_ms"], color=colour, linewidth=0.8, alpha=0.5)
    if knee := knee_of(curve):
        label = f"holds {knee['rate']:.0f}/s"
        axis.plot(knee["rate"], knee["result"]["latency_ms"]["p99"], "D", color=colour, label=label)
