"""/metrics speaks Prometheus's text to everyone, and OpenMetrics with exemplars to who asks for it."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.openmetrics.exposition import generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parsed

from foveal.api.app import create_app
from foveal.api.context import Server
from foveal.api.exposition import wants_openmetrics
from foveal.metrics import exemplar
from foveal.settings import Settings
from tests.fakes import fake_service, picture

PROMETHEUS = (
    "application/openmetrics-text;version=1.0.0;q=0.5,application/openmetrics-text;version=0.0.1;q=0.4,"
    "text/plain;version=1.0.0;q=0.3,text/plain;version=0.0.4;q=0.2,*/*;q=0.1"
)
"""What a Prometheus sends."""


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    fake = fake_service()
    transport = httpx.ASGITransport(create_app(Server(Settings(), fake.metrics, service=fake.service)))
    async with httpx.AsyncClient(transport=transport, base_url="http://foveal") as client:
        yield client


@pytest.mark.parametrize(
    ("accept", "wanted"),
    [
        (PROMETHEUS, True),
        ("application/openmetrics-text", True),
        ("Application/OpenMetrics-Text; Version=1.0.0; Q=1", True),
        ("application/openmetrics-text;q=0.3, text/plain;q=0.5", False),
        ("application/openmetrics-text;q=0, text/plain;q=0", False),
        ("text/plain", False),
        ("*/*", False),
        ("", False),
    ],
)
def test_openmetrics_is_for_who_prefers_it(accept: str, wanted: bool) -> None:
    assert wants_openmetrics(accept) is wanted


@given(st.text())
def test_no_accept_header_is_too_odd(accept: str) -> None:
    wants_openmetrics(accept)
    wants_openmetrics(f"application/openmetrics-text;{accept}")


async def test_text_is_the_default_and_has_no_exemplars(http: httpx.AsyncClient) -> None:
    await http.post("/encode", content=picture(), headers={"X-Request-ID": "mine"})
    answer = await http.get("/metrics")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert "mine" not in answer.text and "# EOF" not in answer.text


@pytest.mark.parametrize("request_id", ["mine", "a1b2:3/4.5@6+7-8_9", "x" * 128])
async def test_exemplars_lead_from_a_bucket_to_the_request(http: httpx.AsyncClient, request_id: str) -> None:
    await http.post("/encode", content=picture(), headers={"X-Request-ID": request_id})
    answer = await http.get("/metrics", headers={"Accept": PROMETHEUS})
    assert answer.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    found = {
        (family.name, sample.labels.get("stage", "")): sample.exemplar
        for family in parsed(answer.text)
        for sample in family.samples
        if sample.exemplar
    }
    assert {name[0] for name in found} == {"foveal_request_seconds", "foveal_stage_seconds"}
    stages = {name[1] for name in found if name[0] == "foveal_stage_seconds"}
    assert {"fetch", "probe", "prep", "queue", "encode", "serialize"} <= stages
    for one in found.values():
        assert one is not None
        assert request_id.startswith(one.labels["request_id"]) and len(one.labels["request_id"]) >= min(
            len(request_id), 118
        )


@given(st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=128), st.booleans())
def test_any_request_id_fits_into_an_exemplar(request_id: str, is_traced: bool) -> None:
    registry = CollectorRegistry()
    seconds = Histogram("seconds", "Of a test", registry=registry)
    seconds.observe(0.01, exemplar(request_id, "a" * 32 if is_traced else ""))
    families = list(parsed(generate_latest(registry).decode()))
    (labels,) = [s.exemplar.labels for f in families for s in f.samples if s.exemplar] or [{}]
    assert request_id.startswith(labels.get("request_id", ""))
    assert ("trace_id" in labels) is is_traced
    assert ("request_id" in labels) is (re.fullmatch(r"[A-Za-z0-9_.:/@+-]+", request_id) is not None)


async def test_head_is_answered(http: httpx.AsyncClient) -> None:
    assert (await http.head("/metrics")).status_code == 200
