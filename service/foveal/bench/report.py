"""How results of the packing simulation are shown: a table, a JSON file, a plot."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from foveal.bench.figures import save_plot, write_figures
from foveal.bench.packing import Result
from foveal.errors import ConfigurationError


def table(results: Sequence[Result]) -> str:
    """A Markdown table: a line per depth, a column per rule, `padding / time ratio / most packs waited` in each."""
    columns = _columns(results)
    lines = [["depth", *columns], ["---"] * (1 + len(columns))]
    for depth in _depths(results):
        cells = [next(r for r in column if r.depth == depth) for column in columns.values()]
        lines.append([str(depth), *(f"{100 * r.padding:.1f} % / {r.time_ratio:.3f} / {r.max_waited}" for r in cells)])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(f"| {' | '.join(c.ljust(w) for c, w in zip(line, widths, strict=True))} |" for line in lines)


def write_json(path: Path, given: Mapping[str, object], results: Iterable[Result]) -> None:
    """What was given and what came out."""
    write_figures(path, {"given": given, "results": [asdict(r) for r in results]}, indent=2)


def draw(path: Path, results: Sequence[Result]) -> None:
    """Padding and time over depth, a line per rule. Raises ConfigurationError without matplotlib."""
    try:
        import matplotlib
    except ModuleNotFoundError:
        raise ConfigurationError("--plot needs the package matplotlib: pip install 'foveal[demo]'") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4.5), layout="constrained")
    depths = _depths(results)
    for name, column in _columns(results).items():
        left.plot(depths, [100 * r.padding for r in column], marker="o", label=name)
        right.plot(depths, [r.time_ratio for r in column], marker="o", label=name)
    left.set(title="padded tokens, % of real ones", ylim=(0, None))
    right.set(title="time / (no padding, fewest runs)", ylim=(1, None))
    for axis in (left, right):
        axis.set_xscale("log", base=2)
        axis.set_xticks(depths, [str(depth) for depth in depths])
        axis.set_xlabel("images that wait")
        axis.grid(alpha=0.3)
    left.legend()
    save_plot(path, figure)
    pyplot.close(figure)


def _columns(results: Iterable[Result]) -> dict[str, list[Result]]:
    columns: dict[str, list[Result]] = {}
    for result in results:
        columns.setdefault(f"{result.rule}, {result.num_budgets} budgets", []).append(result)
    return columns


def _depths(results: Iterable[Result]) -> list[int]:
    return sorted({result.depth for result in results})
