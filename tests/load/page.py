"""The report of a watched load test as one HTML file, with its picture inside."""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from foveal.files import write_text
from tests.load.expressions import Finding

STYLE = (
    "body{font:14px sans-serif;max-width:1200px;margin:2em auto}img{width:100%}"
    "td,th{padding:2px 10px;text-align:left;border-bottom:1px solid #ddd;vertical-align:top}"
    "code{font-size:12px}.bad{color:#b00;font-weight:bold}"
)


def write_page(out: Path, findings: Sequence[Finding] | None) -> None:
    """Write report.html beside load.json and load.png; findings None: no query was asked."""
    body = ["<h1>Load test</h1>", *_load(out)]
    if findings is None:
        body.append("<p class=bad>Prometheus is missing: no query was asked.</p>")
    else:
        good = sum(finding.is_good for finding in findings)
        body.append(f"<h2>Queries: {good} of {len(findings)} as they should be</h2>")
        body.append(_table(("where", "verdict", "series", "expression"), map(_row, findings)))
    text = f"<!doctype html><meta charset=utf-8><title>foveal: load test</title><style>{STYLE}</style>"
    write_text(out / "report.html", text + "\n".join(body) + "\n")


def _load(out: Path) -> list[str]:
    if not (out / "load.json").is_file():
        return ["<p class=bad>The load test did not finish.</p>"]
    load = json.loads((out / "load.json").read_text())
    heads = ("step", "asked/s", "answered/s", "p50 ms", "p99 ms", "errors", "generator late p99 ms")
    rows = [
        "".join(
            f"<td>{cell}</td>"
            for cell in (
                step["label"],
                f"{step['offered_per_second']:.1f}",
                f"{step['answered_per_second']:.1f}",
                f"{step['latency_ms']['p50']:.1f}",
                f"{step['latency_ms']['p99']:.1f}",
                html.escape(json.dumps(step["errors"])),
                f"{step['lag_p99_ms']:.2f}",
            )
        )
        for step in load["steps"]
    ]
    said = [f"<p>{html.escape(text)}</p>" for text in (load["held"], *load["broken"], *load["warnings"])]
    picture = base64.b64encode((out / "load.png").read_bytes()).decode()
    return [
        _table(heads, rows),
        *said,
        f'<img alt="latency, distributions, stages" src="data:image/png;base64,{picture}">',
    ]


def _row(finding: Finding) -> str:
    kind = "" if finding.is_good else " class=bad"
    cells = f"<td>{html.escape(finding.where)}</td><td{kind}>{html.escape(finding.verdict)}</td>"
    return cells + f"<td>{finding.num_series}</td><td><code>{html.escape(finding.text)}</code></td>"


def _table(heads: Iterable[str], rows: Iterable[str]) -> str:
    head = "".join(f"<th>{name}</th>" for name in heads)
    return f"<table><tr>{head}</tr>" + "".join(f"<tr>{row}</tr>" for row in rows) + "</table>"
