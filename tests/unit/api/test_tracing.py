"""Spans: one for each request and one for each stage, under the caller's trace, bounded, and none when it is off."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator

import httpx
import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from foveal.api.app import create_app
from foveal.api.context import Server
from foveal.api.tracing import MAX_IMAGES, Tracing, make_tracing
from foveal.engine.stages import Stage, Stages
from foveal.errors import ConfigurationError
from foveal.settings import Settings
from tests.fakes import fake_service, picture

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
CALLERS = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
OK = {"http.response.status_code": 200}


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def tracing(exporter: InMemorySpanExporter) -> Iterator[Tracing]:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    yield Tracing(provider)
    provider.shutdown()


def named(exporter: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    return {span.name: span for span in exporter.get_finished_spans()}


async def post(tracing: Tracing, body: bytes, headers: dict[str, str]) -> httpx.Response:
    fake = fake_service()
    server = Server(Settings(), fake.metrics, service=fake.service)
    server.tracing = tracing
    transport = httpx.ASGITransport(create_app(server))
    async with httpx.AsyncClient(transport=transport, base_url="http://foveal") as http:
        await http.get("/ready")
        return await http.post("/encode", content=body, headers=headers)


async def test_a_request_is_a_server_span_with_its_stages_in_the_callers_trace(
    tracing: Tracing, exporter: InMemorySpanExporter
) -> None:
    answer = await post(tracing, picture(), {**CALLERS, "X-Request-ID": "mine"})
    assert answer.status_code == 200
    spans = named(exporter)
    root = spans.pop("POST /encode")  # and none for /ready
    assert {"fetch", "probe", "prep", "serialize"} <= set(spans)
    assert root.kind is SpanKind.SERVER and root.status.status_code is StatusCode.UNSET
    assert root.parent is not None and format(root.parent.span_id, "016x") == PARENT
    assert root.attributes is not None
    assert root.attributes["foveal.request_id"] == "mine" and root.attributes["http.response.status_code"] == 200
    for span in spans.values():
        assert format(span.context.trace_id, "032x") == TRACE
        assert span.parent is not None and span.parent.span_id == root.context.span_id
        assert root.start_time <= span.start_time <= span.end_time <= root.end_time


async def test_a_refused_request_shows_how_far_it_came(tracing: Tracing, exporter: InMemorySpanExporter) -> None:
    answer = await post(tracing, b"FAKE BAD", {})
    assert answer.status_code == 422
    root = named(exporter)["POST /encode"]
    assert root.attributes is not None and root.parent is None
    assert (root.attributes["foveal.code"], root.attributes["foveal.failed_in"]) == ("undecodable", "probe")
    assert root.status.status_code is StatusCode.UNSET  # the caller's mistake is no error of the server's
    assert "fetch" in named(exporter)


@pytest.mark.parametrize("bad", ["", "x", f"00-{'0' * 32}-{PARENT}-01", f"00-{TRACE}-{PARENT}", "\x00" * 3000])
def test_a_malformed_traceparent_is_none(bad: str, tracing: Tracing, exporter: InMemorySpanExporter) -> None:
    trace_id = tracing.record("x", time.monotonic(), {"traceparent": bad}, OK, Stages(), {})
    assert trace_id != TRACE and named(exporter)["x"].parent is None


def test_a_caller_who_does_not_sample_is_not_sampled(tracing: Tracing, exporter: InMemorySpanExporter) -> None:
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-00"}
    assert tracing.record("x", time.monotonic(), headers, OK, Stages(), {}) == TRACE
    assert not exporter.get_finished_spans()


def test_a_failure_of_ours_is_an_error(tracing: Tracing, exporter: InMemorySpanExporter) -> None:
    tracing.record("x", time.monotonic(), {}, {"http.response.status_code": 503}, Stages(), {})
    assert named(exporter)["x"].status.status_code is StatusCode.ERROR


def test_a_request_of_many_images_has_the_spans_of_some(tracing: Tracing, exporter: InMemorySpanExporter) -> None:
    now = time.monotonic()
    images = {i: Stages(passed=[Stage("encode", now, now + 1)], mode="graph", budget=512) for i in range(50)}
    tracing.record("x", now, {}, OK, Stages(), images)
    shown = [dict(span.attributes or {}) for span in exporter.get_finished_spans() if span.name == "encode"]
    assert shown == [{"foveal.image": i, "foveal.mode": "graph", "foveal.budget": 512} for i in range(MAX_IMAGES)]


def test_of_an_image_under_way_before_only_what_was_waited_for_is_shown(
    tracing: Tracing, exporter: InMemorySpanExporter
) -> None:
    now = time.monotonic()
    others = Stages(passed=[Stage("probe", now - 9, now - 8), Stage("queue", now - 8, now + 1)])
    tracing.record("x", now, {}, OK, Stages(), {0: others})
    spans = named(exporter)
    assert set(spans) == {"x", "queue"} and spans["queue"].start_time == spans["x"].start_time


def test_without_the_setting_nothing_of_it_is_imported() -> None:
    assert make_tracing(None) is None
    program = (
        "import sys; from foveal.api.server import serve; from foveal.api.context import Server; "
        "from foveal.metrics import Metrics; from foveal.settings import Settings; "
        "from prometheus_client import CollectorRegistry; Server(Settings(), Metrics(CollectorRegistry())); "
        "sys.exit(any(name.startswith('opentelemetry.sdk') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


def test_the_setting_without_the_extra_is_refused_with_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(ConfigurationError, match=r"--otel-endpoint needs .* 'foveal\[otel\]'"):
        make_tracing("http://collector:4318")


@pytest.mark.parametrize("wrong", ["collector:4318", "grpc://collector:4317", "http://", "http:// x", ""])
def test_an_endpoint_that_is_no_url_is_refused(wrong: str) -> None:
    with pytest.raises(ValueError, match="otel_endpoint"):
        Settings(otel_endpoint=wrong)


async def test_a_collector_that_does_not_answer_does_not_keep_the_server_from_ending(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("foveal.api.tracing.FLUSH_SECONDS", 0.05)
    tracing = make_tracing("http://127.0.0.1:9")  # nobody listens there: the exporter tries again and again
    assert tracing is not None
    tracing.record("x", time.monotonic(), {}, OK, Stages(), {})
    await tracing.stop()
    assert "could not be handed over" in caplog.text
