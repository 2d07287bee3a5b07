"""What the dashboards and the runbook rely on: families with the contract's labels, one log line for each request."""

from __future__ import annotations

import json
import logging
import re

import httpx
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from foveal.api.app import create_app
from foveal.api.context import Server
from foveal.logs import JsonLines
from foveal.metrics import OUTCOMES, STAGES, Metrics
from foveal.settings import Settings
from tests.fakes import fake_service, picture

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
