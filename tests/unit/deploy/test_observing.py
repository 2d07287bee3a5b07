"""What the dashboards and the runbook rely on: families with the contract's labels, one log line for each request."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path

import httpx
import pytest
from fastapi.routing import APIRoute
from prometheus_client import CollectorRegistry, generate_latest

from foveal.api.app import create_app
from foveal.api.context import Server
from foveal.errors import BY_CODE
from foveal.logs import JsonLines
from foveal.metrics import OUTCOMES, PACK_KINDS, REJECTIONS, STAGES, Metrics
from foveal.settings import Settings
from tests.fakes import fake_service, picture

SERVICE = Path(__file__).parents[3] / "service" / "foveal"
CONTRACT = {
    "foveal_requests": {"route", "status", "code"},
    "foveal_request_seconds": {"route"},
    "foveal_stage_seconds": {"stage"},
    "foveal_images": {"outcome"},
    "foveal_tokens": set(),
    "foveal_patches": set(),
    "foveal_padding_tokens": set(),
    "foveal_packs": {"worker", "mode", "reason"},
    "foveal_pack_items": set(),
    "foveal_pack_tokens": set(),
    "foveal_pack_fill_ratio": set(),
    "foveal_graph_replays": {"worker", "budget"},
    "foveal_queue_items": set(),
    "foveal_queue_tokens": set(),
    "foveal_inflight_items": set(),
    "foveal_inflight_bytes": set(),
    "foveal_admission_rejections": {"reason"},
    "foveal_cache_bytes": set(),
    "foveal_cache_entries": set(),
    "foveal_cache_hits": set(),
    "foveal_cache_misses": set(),
    "foveal_cache_evictions": set(),
    "foveal_worker_up": {"worker"},
    "foveal_worker_restarts": {"worker", "kind"},
    "foveal_graph_memory_bytes": {"worker"},
    "foveal_gpu_memory_bytes": {"worker", "kind"},
    "foveal_loop_lag_seconds": set(),
    "foveal_gpu_utilization_ratio": {"worker"},
    "foveal_gpu_device_memory_bytes": {"worker", "kind"},
    "foveal_gpu_clock_hertz": {"worker", "clock"},
    "foveal_gpu_throttled": {"worker", "reason"},
    "foveal_gpu_ecc_uncorrected_errors": {"worker"},
    "foveal_gpu_temperature_celsius": {"worker"},
    "foveal_gpu_power_watts": {"worker"},
    "foveal_egress_bytes": set(),
    "foveal_build_info": {"version", "model", "family"},
}
"""Families and labels that clients of /metrics rely on; more may come, none may go."""


def test_every_family_of_the_contract_is_there_from_the_start_with_its_labels() -> None:
    metrics = Metrics(CollectorRegistry())
    found = {
        metric._name: set(metric._labelnames) for metric in vars(metrics).values() if hasattr(metric, "_labelnames")
    }
    assert {name: found.get(name) for name in CONTRACT} == CONTRACT
    text = generate_latest(metrics.registry).decode()
    assert all(re.search(rf"^# TYPE {name}(_total)? ", text, re.MULTILINE) for name in CONTRACT)


def test_stages_and_outcomes_are_zero_before_the_first_request() -> None:
    text = generate_latest(Metrics(CollectorRegistry()).registry).decode()
    assert all(f'foveal_stage_seconds_count{{stage="{stage}"}} 0.0' in text for stage in STAGES)
    assert all(f'foveal_images_total{{outcome="{outcome}"}} 0.0' in text for outcome in OUTCOMES)


def series(text: str, name: str) -> set[str]:
    """All label sets of a sample, as written."""
    return set(re.findall(rf"^{name}\{{(.*)\}} 0\.0$", text, re.MULTILINE))


async def test_every_series_that_can_be_foreseen_is_zero_before_its_first_event() -> None:
    fake = fake_service()
    app = create_app(Server(Settings(), fake.metrics, service=fake.service))
    for device in ("cpu", "cuda"):
        fake.metrics.expect_packs(f"{device}-0", device)
    text = generate_latest(fake.metrics.registry).decode()
    routes = {route.path for route in app.routes if isinstance(route, APIRoute)} | {"other"}
    assert {"/encode", "/v1/embeddings", "/ready"} <= routes
    assert series(text, "foveal_request_seconds_count") == {f'route="{route}"' for route in routes}
    asked = series(text, "foveal_requests_total")
    assert {f'code="ok",route="{route}",status="200"' for route in routes} <= asked
    for code, error in BY_CODE.items():
        assert f'code="{code}",route="/encode",status="{error.status}"' in asked
    assert 'code="gone",route="/v1/embeddings",status="499"' in asked
    assert series(text, "foveal_admission_rejections_total") == {f'reason="{reason}"' for reason in REJECTIONS}
    packs = series(text, "foveal_packs_total")
    assert 'mode="graph",reason="",worker="cuda-0"' in packs and 'mode="eager",reason="cpu",worker="cpu-0"' in packs
    assert not any("graph" in one for one in packs if "cpu-0" in one)


def test_reasons_of_refusals_and_packs_are_those_that_the_code_gives() -> None:
    code = "".join(
        path.read_text() for folder in ("engine", "handover", "gpu") for path in sorted((SERVICE / folder).glob("*.py"))
    )
    given = set(re.findall(r'admission_rejections\.labels\("(\w+)"\)', code))
    given |= set(re.findall(r'reason = "(bytes)" if .* else "(tokens)"', code)[0])
    assert given == set(REJECTIONS)
    for reason in {reason for kinds in PACK_KINDS.values() for _, reason in kinds if reason}:
        assert f'"{reason}"' in code, reason


@pytest.mark.parametrize(("body", "code"), [(picture(), "ok"), (b"FAKE BAD", "undecodable")], ids=["good", "bad"])
async def test_a_request_leaves_one_line_of_json_with_what_the_runbook_asks_for(
    body: bytes, code: str, caplog: pytest.LogCaptureFixture
) -> None:
    fake = fake_service()
    transport = httpx.ASGITransport(create_app(Server(Settings(), fake.metrics, service=fake.service)))
    with caplog.at_level(logging.INFO, "foveal.requests"):
        async with httpx.AsyncClient(transport=transport, base_url="http://foveal") as http:
            await http.post("/encode", content=body, headers={"X-Request-ID": "mine"})
            await http.get("/ready")
    (record,) = [record for record in caplog.records if record.name == "foveal.requests"]
    line = json.loads(JsonLines().format(record))
    assert (line["request_id"], line["code"], line["route"]) == ("mine", code, "/encode")
    assert {"time", "level", "status", "seconds", "bytes", "fetch"} <= set(line)
    if code == "ok":
        assert {"queue", "prep", "encode", "total", "images", "tokens"} <= set(line)
