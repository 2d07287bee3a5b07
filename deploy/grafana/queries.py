"""What panels are made of: their shape, and the forms of query that come again."""

from __future__ import annotations

from dataclasses import dataclass, field

NO_GPU = "Empty without a GPU."
NO_LLM = "Empty without an LLM server behind it."
ALL_WELL = "Empty when all is well."
"""What a description ends with where nothing to see is no fault. `make load` reads it too."""

HERE = 'instance=~"$instance"'
WORK = f'{HERE},route=~"/encode|/v1/embeddings"'


@dataclass(frozen=True)
class Panel:
    """One panel; `queries` are expression and legend."""

    title: str
    unit: str
    queries: list[tuple[str, str]]
    description: str
    kind: str = "timeseries"
    width: int = 8
    height: int = 8
    stacked: bool = False
    thresholds: list[tuple[float | None, str]] = field(default_factory=list)


def rate(metric: str, labels: str = HERE, by: str = "") -> str:
    """Growth a second, added up."""
    return f"sum{f' by ({by})' if by else ''} (rate({metric}{{{labels}}}[$__rate_interval]))"


def quantile(q: float, metric: str, labels: str = HERE, by: str = "") -> str:
    """A quantile of a histogram."""
    return f"histogram_quantile({q}, {rate(metric + '_bucket', labels, 'le' + (f', {by}' if by else ''))})"


def stat(title: str, unit: str, expr: str, description: str, thresholds: list[tuple[float | None, str]]) -> Panel:
    """A number with a colour."""
    return Panel(title, unit, [(expr, "")], description, "stat", width=4, height=4, thresholds=thresholds)


GOOD_ABOVE_ZERO: list[tuple[float | None, str]] = [(None, "red"), (1, "green")]
FRESH = "foveal_cache_misses_total"
HITS = "foveal_cache_hits_total"
PADDING = "foveal_padding_tokens_total"


def share(part: str, rest: str) -> str:
    """One counter's growth as a share of two."""
    return f"{rate(part)} / ({rate(part)} + {rate(rest)})"


def mean(metric: str, by: str = "") -> str:
    """Mean of a histogram."""
    return f"{rate(metric + '_sum', HERE, by)} / {rate(metric + '_count', HERE, by)}"


FAILURES = HERE + ',code!="ok",route!~"/ready|/health"'
FAILED = rate("foveal_requests_total", WORK + ',code!="ok"')
ASKED = rate("foveal_requests_total", WORK)
