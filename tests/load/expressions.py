"""Every expression of the dashboard and of the alert rules, and what a Prometheus says of each."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.load.prometheus import Prometheus, QueryFailed

DEPLOY = Path(__file__).parents[2] / "deploy"
MAY_BE_EMPTY = ("Empty without a GPU.", "Empty without an LLM server behind it.", "Empty when all is well.")
"""What a panel's description says where nothing to see is no fault."""
NEEDS = {
    "foveal_gpu_throttled": "a GPU",
    "foveal_gpu_ecc_uncorrected_errors": "a GPU",
    "foveal_gateway_upstream_up": "an LLM server",
}
"""What has series only on other machines than a plain CPU. The family must be there all the same."""
EXEMPLARS = "foveal_request_seconds_bucket"
VARIABLES = {"$__rate_interval": "1m", "$instance": ".*", "$stage": ".*"}
METRIC = re.compile(r"\bfoveal_\w+")


@dataclass(frozen=True)
class Expression:
    """One query: of a panel, or of an alert, which is empty when all is well."""

    where: str
    text: str
    may_be_empty: bool = False
    must_be_empty: bool = False
    family: str = ""
    """Must be there, with series or without."""
    needs: str = ""
    """What this machine may lack, so that there is nothing to see."""


@dataclass(frozen=True)
class Finding:
    """What came out."""

    where: str
    text: str
    verdict: str
    """ok, "ok (empty)", or what is wrong."""
    num_series: int = 0

    @property
    def is_good(self) -> bool:
        return self.verdict.startswith("ok")


def panels() -> Iterator[dict[str, Any]]:
    """Every panel of every dashboard that shows something."""
    for path in sorted((DEPLOY / "grafana" / "dashboards").glob("*.json")):
        for panel in json.loads(path.read_text())["panels"]:
            if panel["type"] != "row":
                yield panel


def of_dashboards() -> Iterator[Expression]:
    """The panels' queries, with the variables put in."""
    for panel in panels():
        allowed = panel["description"].endswith(MAY_BE_EMPTY)
        for target in panel["targets"]:
            text = target["expr"]
            for name, value in VARIABLES.items():
                text = text.replace(name, value)
            yield Expression(f"panel {panel['title']}", text, may_be_empty=allowed)


def rules() -> Iterator[dict[str, Any]]:
    """Every alert rule."""
    for path in sorted((DEPLOY / "prometheus").glob("alerts.yml")):
        for group in yaml.safe_load(path.read_text())["groups"]:
            yield from group["rules"]


def of_alerts() -> Iterator[Expression]:
    """The rules' expressions."""
    for rule in rules():
        yield Expression(f"alert {rule['alert']}", rule["expr"], must_be_empty=True)


def of_metrics() -> Iterator[Expression]:
    """Whether there is anything behind the names that the alerts use."""
    for name in sorted({name for rule in rules() for name in METRIC.findall(rule["expr"])}):
        yield Expression(f"metric {name}", f"count({name})", family=name, needs=NEEDS.get(name, ""))


def asked(prometheus: Prometheus, expression: Expression) -> Finding:
    """Run one."""
    try:
        series = prometheus.query(expression.text)
    except QueryFailed as error:
        return Finding(expression.where, expression.text, f"invalid: {error}")
    if expression.family and not prometheus.knows(expression.family):
        return Finding(expression.where, expression.text, "no such family")
    told = [one for one in series if not math.isnan(float(one["value"][1]))]
    return Finding(expression.where, expression.text, _verdict(expression, len(told), len(series)), len(told))


def of_exemplars(prometheus: Prometheus) -> Finding:
    """Whether Prometheus has request ids beside the latencies."""
    labels = prometheus.exemplars(EXEMPLARS)
    found = sum("request_id" in one for one in labels)
    verdict = "ok" if found else "no exemplar with a request id"
    return Finding("exemplars of requests", f"query_exemplars({EXEMPLARS})", verdict, found)


def _verdict(expression: Expression, num_told: int, num_series: int) -> str:
    if expression.must_be_empty:
        return "it holds now" if num_told else "ok (empty)"
    if num_told:
        return "ok"
    if expression.needs:
        return f"ok (empty without {expression.needs})"
    if expression.may_be_empty:
        return "ok (empty)"
    return "only NaN" if num_series else "empty"
