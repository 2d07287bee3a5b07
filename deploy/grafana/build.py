"""Writes the dashboard, top to bottom the questions of someone on call. The panels are in panels*.py.

python deploy/grafana/build.py            # writes dashboards/foveal.json
python deploy/grafana/build.py --check    # exit code 1 when that file is not what would be written
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import panels
import panels_of_work
from queries import Panel

OUT = Path(__file__).parent / "dashboards" / "foveal.json"
COLUMNS = 24
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
PALETTE = {"color": {"mode": "palette-classic"}}
EXEMPLARS = re.compile(r"foveal_(request|stage)_seconds_bucket")


def dashboard() -> dict[str, Any]:
    """The whole document."""
    drawn_panels: list[dict[str, Any]] = []
    y = 0
    for title, row in (panels.ROWS | panels_of_work.ROWS).items():
        drawn_panels.append(
            {"id": len(drawn_panels) + 1, "type": "row", "title": title, "collapsed": False, "panels": []}
            | {"gridPos": {"x": 0, "y": y, "w": COLUMNS, "h": 1}}
        )
        y, x, height = y + 1, 0, 0
        for panel in row:
            if x + panel.width > COLUMNS:
                y, x, height = y + height, 0, 0
            place = {"x": x, "y": y, "w": panel.width, "h": panel.height}
            drawn_panels.append({"id": len(drawn_panels) + 1, "gridPos": place, **drawn(panel)})
            x, height = x + panel.width, max(height, panel.height)
        y += height
    return {
        "uid": "foveal",
        "title": "foveal",
        "tags": ["foveal"],
        "timezone": "browser",
        "schemaVersion": 39,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "graphTooltip": 1,
        "editable": True,
        "templating": {"list": variables()},
        "annotations": {"list": [alerts_shown()]},
        "panels": drawn_panels,
    }


def drawn(panel: Panel) -> dict[str, Any]:
    """One panel."""
    targets = [
        {"refId": chr(ord("A") + i), "datasource": SOURCE, "expr": expr, "legendFormat": legend}
        | ({"format": "heatmap"} if panel.kind == "heatmap" else {})
        | ({"instant": True, "range": False} if panel.kind == "stat" else {})
        | ({"exemplar": True} if panel.kind == "timeseries" and EXEMPLARS.search(expr) else {})
        for i, (expr, legend) in enumerate(panel.queries)
    ]
    return {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": SOURCE,
        "targets": targets,
        "fieldConfig": {"defaults": {"unit": panel.unit, **_field(panel)}, "overrides": []},
        "options": _options(panel),
    }


def _field(panel: Panel) -> dict[str, Any]:
    if panel.kind == "stat":
        steps = [{"color": color, "value": at} for at, color in panel.thresholds or [(None, "blue")]]
        return {"color": {"mode": "thresholds"}, "thresholds": {"mode": "absolute", "steps": steps}}
    if panel.kind == "heatmap":
        return {}
    stacking = {"mode": "normal" if panel.stacked else "none", "group": "A"}
    custom = {"lineWidth": 1, "fillOpacity": 40 if panel.stacked else 5, "showPoints": "never", "stacking": stacking}
    return PALETTE | {"custom": custom, "min": 0}


def _options(panel: Panel) -> dict[str, Any]:
    if panel.kind == "stat":
        return {"reduceOptions": {"calcs": ["lastNotNull"]}, "colorMode": "background", "graphMode": "none"}
    if panel.kind == "heatmap":
        scheme = {"mode": "scheme", "scheme": "Oranges", "steps": 64}
        return {"calculate": False, "yAxis": {"unit": panel.unit}, "color": scheme, "cellGap": 0}
    legend = {"displayMode": "table", "placement": "bottom", "calcs": ["lastNotNull", "max"], "showLegend": True}
    return {"legend": legend, "tooltip": {"mode": "multi", "sort": "desc"}}


def variables() -> list[dict[str, Any]]:
    """What can be chosen at the top."""
    named = {
        "instance": "label_values(foveal_build_info, instance)",
        "stage": "label_values(foveal_stage_seconds_bucket, stage)",
    }
    chosen = [
        {"name": name, "type": "query", "datasource": SOURCE, "query": {"query": query, "refId": name}}
        | {"refresh": 2, "includeAll": True, "multi": True, "allValue": ".*", "sort": 1}
        | {"current": {"text": ["All"], "value": ["$__all"]}}
        for name, query in named.items()
    ]
    return [{"name": "datasource", "type": "datasource", "query": "prometheus", "label": "source"}, *chosen]


def alerts_shown() -> dict[str, Any]:
    """Firing alerts as marks on every graph."""
    return {
        "name": "alerts",
        "enable": True,
        "iconColor": "red",
        "datasource": SOURCE,
        "expr": 'ALERTS{job=~"foveal|",alertname=~"Foveal.*",alertstate="firing"}',
        "titleFormat": "{{alertname}}",
    }


def main() -> int:
    """Write or compare; the exit code."""
    text = json.dumps(dashboard(), indent=1) + "\n"
    if "--check" in sys.argv:
        return int(not OUT.is_file() or OUT.read_text() != text)
    OUT.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
