"""Dashboard, alerts and runbook speak of metrics and of each other as they are."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from prometheus_client import CollectorRegistry

from foveal.bench.serve.generator import STAGES as REPORTED
from foveal.metrics import STAGES, Metrics
from foveal.settings import Settings
from tests.load.expressions import METRIC, of_alerts, of_dashboards, panels, rules
from tests.load.prometheus import CONFIG, config_for

ROOT = Path(__file__).parents[3]
PROMETHEUS = ROOT / "deploy" / "prometheus"
PANELS = list(panels())
RULES = list(rules())
SCRAPE_SECONDS = 60
"""The longest interval that alerts are good for: Prometheus' own default."""
UNITS = {"s": 1, "m": 60, "h": 3600}


def promtool_3() -> str | None:
    """What `make promtool` put beside this interpreter, or the machine's own; version 3, as in the compose file."""
    found = shutil.which("promtool", path=str(Path(sys.executable).parent)) or shutil.which("promtool")
    said = subprocess.run([found, "--version"], capture_output=True, text=True).stdout if found else ""
    return found if said.startswith("promtool, version 3") else None


PROMTOOL = promtool_3()
promtool = pytest.mark.skipif(PROMTOOL is None, reason="promtool 3 is not there: `make promtool` says why")


def families() -> dict[str, set[str]]:
    """Every sample name that the service can show, with its labels."""
    found: dict[str, set[str]] = {}
    for metric in instruments():
        labels = set(metric._labelnames)
        match metric._type:
            case "counter":
                found[f"{metric._name}_total"] = labels
            case "histogram":
                found |= {f"{metric._name}_{part}": labels for part in ("sum", "count")}
                found[f"{metric._name}_bucket"] = labels | {"le"}
            case _:
                found[metric._name] = labels
    return found


def instruments() -> Iterator[Any]:
    metrics = Metrics(CollectorRegistry())
    return (value for value in vars(metrics).values() if hasattr(value, "_labelnames"))


FAMILIES = families()
EXPRESSIONS = [pytest.param(e.text, id=f"{e.where}-{i}") for i, e in enumerate((*of_dashboards(), *of_alerts()))]


@pytest.mark.parametrize("text", EXPRESSIONS)
def test_every_metric_that_is_asked_for_exists_with_the_labels_asked_for(text: str) -> None:
    for name in METRIC.findall(text):
        assert name in FAMILIES, name
    for name, matchers in re.findall(r"(foveal_\w+)\{([^}]*)\}", text):
        used = set(re.findall(r"(\w+)(?:=~|!~|!=|=)\"", matchers))
        assert used <= FAMILIES[name] | {"instance", "job"}, (name, used)


AS_WRITTEN = [*(rule["expr"] for rule in RULES), *(t["expr"] for panel in PANELS for t in panel["targets"])]
"""Grafana makes `$__rate_interval` four scrapes long by itself."""


@pytest.mark.parametrize("text", AS_WRITTEN)
def test_a_range_holds_two_samples_wherever_prometheus_scrapes_once_a_minute(text: str) -> None:
    # since Prometheus 3 a range leaves out its left end: one of a single interval holds one sample and tells nothing
    for number, unit in re.findall(r"\[(\d+)([smh])\]", text):
        assert int(number) * UNITS[unit] >= 2 * SCRAPE_SECONDS, text


def test_every_family_of_the_contract_is_looked_at_somewhere() -> None:
    asked = " ".join(e.text for e in (*of_dashboards(), *of_alerts()))
    families = {re.sub(r"_(sum|count|bucket)$", "", name) for name in FAMILIES}
    # replaced by what is better to look at: tokens, images in flight by their bytes, entries by theirs
    aside = {"foveal_patches_total", "foveal_pack_tokens", "foveal_cache_entries"}
    aside |= {"foveal_build_info"}
    assert {name for name in families if name not in asked} <= aside


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_every_panel_has_a_title_a_unit_and_says_what_it_shows(panel: dict[str, Any]) -> None:
    assert panel["title"] and panel["description"].endswith((".", "!"))
    assert panel["fieldConfig"]["defaults"]["unit"]
    assert panel["targets"] and all(target["expr"] for target in panel["targets"])


def test_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in PANELS:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken and place["x"] + place["w"] <= 24, panel["title"]
        taken |= cells


def test_the_dashboard_is_what_its_builder_writes() -> None:
    builder = ROOT / "deploy" / "grafana" / "build.py"
    assert subprocess.run([sys.executable, "-B", builder, "--check"]).returncode == 0


def test_grafana_finds_the_dashboard_and_prometheus() -> None:
    grafana = ROOT / "deploy" / "grafana" / "provisioning"
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    (provider,) = yaml.safe_load((grafana / "dashboards" / "foveal.yml").read_text())["providers"]
    folder = provider["options"]["path"]
    assert f"./deploy/grafana/dashboards:{folder}:ro" in compose["grafana"]["volumes"]
    (source,) = yaml.safe_load((grafana / "datasources" / "prometheus.yml").read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090" and "prometheus" in compose


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_every_alert_leads_to_a_section_that_says_what_to_do(rule: dict[str, Any]) -> None:
    page, anchor = rule["annotations"]["runbook_url"].split("#")
    sections = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL))
    section = sections[rule["alert"]]
    assert anchor == rule["alert"].lower()
    assert all(f"**{part}**" in section for part in ("Means", "Look at", "Do"))
    assert rule["annotations"]["summary"] and rule["labels"]["severity"] in ("page", "ticket")


def test_the_line_that_makes_links_of_the_runbooks_paths_does(tmp_path: Path) -> None:
    text = (PROMETHEUS / "alerts.yml").read_text()
    (tmp_path / "alerts.yml").write_text(text)
    (line,) = re.findall(r"^# +(sed .*)", text, re.MULTILINE)
    assert subprocess.run(shlex.split(line), cwd=tmp_path).returncode == 0
    (group,) = yaml.safe_load((tmp_path / "alerts.yml").read_text())["groups"]
    assert [rule["alert"] for rule in group["rules"]] == [rule["alert"] for rule in RULES]
    for rule in group["rules"]:
        link = httpx.URL(rule["annotations"]["runbook_url"])
        assert link.scheme == "https" and link.path.endswith("/docs/runbook.md") and link.fragment


def test_the_runbook_has_no_section_without_an_alert() -> None:
    sections = re.findall(r"^## (\w+)", (ROOT / "docs" / "runbook.md").read_text(), re.MULTILINE)
    assert sections == [rule["alert"] for rule in RULES]


def test_panels_that_the_runbook_names_exist() -> None:
    text = (ROOT / "docs" / "runbook.md").read_text()
    titles = {panel["title"].split(",")[0] for panel in PANELS}
    looked_at = " ".join(re.findall(r"\*\*Look at\*\*(.*?)\*\*Do\*\*", text, re.DOTALL))
    named = {re.sub(r"\s+", " ", name) for name in re.findall(r'"([A-Z][^"]+)"', looked_at)}
    assert named and named <= titles, named - titles


def test_settings_that_the_runbook_names_exist() -> None:
    text = (ROOT / "docs" / "runbook.md").read_text()
    of_other_commands = {"no-log-prefix", "url", "rates", "max-p99-ms", "cpu-threads", "enable-feature"}
    named = set(re.findall(r"--([a-z][a-z0-9-]+)", text)) - of_other_commands
    assert {name.replace("-", "_") for name in named} <= set(Settings.model_fields)


def test_every_stage_is_in_the_load_tests_report() -> None:
    assert set(STAGES) - set(REPORTED) == {"serialize"}  # it ends after the header is sent


def test_the_watched_load_test_changes_nothing_of_the_configuration_but_target_and_interval() -> None:
    ours, theirs = yaml.safe_load(CONFIG.read_text()), yaml.safe_load(config_for("h:1"))
    assert [job["job_name"] for job in theirs["scrape_configs"]] == [job["job_name"] for job in ours["scrape_configs"]]
    assert [Path(name).name for name in theirs["rule_files"]] == ours["rule_files"]


@promtool
def test_promtool_accepts_configuration_and_rules() -> None:
    assert subprocess.run([str(PROMTOOL), "check", "config", PROMETHEUS / "prometheus.yml"]).returncode == 0


@promtool
def test_every_alert_fires_on_what_it_is_for_and_none_on_a_good_hour() -> None:
    assert subprocess.run([str(PROMTOOL), "test", "rules", PROMETHEUS / "alerts_test.yml"]).returncode == 0
    told = (PROMETHEUS / "alerts_test.yml").read_text()
    assert all(f'alertname="{rule["alert"]}"' in told for rule in RULES)
