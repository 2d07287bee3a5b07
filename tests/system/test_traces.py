"""Traces of a real server, as an OTLP collector receives them; and a collector that is not there."""

from __future__ import annotations

import gzip
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from .conftest import serving
from .test_encode import noise

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
CALLERS = {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01", "Content-Type": "image/png"}
SOON = {"OTEL_BSP_SCHEDULE_DELAY": "50", "OTEL_SERVICE_NAME": "pictures"}
FLAGS = ("--prep-workers", "1", "--token-budgets", "64,128,512,1024")


class Collector:
    """What has arrived so far."""

    def __init__(self) -> None:
        self.url = ""
        self.services: set[str] = set()
        self.spans: list[Span] = []

    def take(self, body: bytes) -> None:
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            self.services |= {a.value.string_value for a in resource.resource.attributes if a.key == "service.name"}
            self.spans += [span for scope in resource.scope_spans for span in scope.spans]


@pytest.fixture
def collector() -> Iterator[Collector]:
    found = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path == "/v1/traces"
            body = self.rfile.read(int(self.headers["Content-Length"]))
            found.take(gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *args: object) -> None:
            """Be quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        found.url = f"http://127.0.0.1:{http.server_port}"
        thread = threading.Thread(target=http.serve_forever)
        thread.start()
        yield found
        http.shutdown()
        thread.join()


def test_a_collector_receives_every_stage_of_a_request(collector: Collector) -> None:
    with serving(*FLAGS, "--otel-endpoint", collector.url, variables=SOON) as running:
        answer = httpx.post(running.url + "/encode", content=noise(200, 200, 1), headers=CALLERS, trust_env=False)
        assert answer.status_code == 200
        running.until(lambda: any(span.name == "POST /encode" for span in collector.spans))
        assert any(TRACE in line for line in running.lines)  # the log line leads to it
        metrics = httpx.get(
            running.url + "/metrics", headers={"Accept": "application/openmetrics-text"}, trust_env=False
        )
        assert f'trace_id="{TRACE}"' in metrics.text
    spans = {span.name: span for span in collector.spans}
    stages = {"fetch", "probe", "prep", "queue", "copy_in", "encode", "copy_out", "serialize"}
    assert set(spans) == {"POST /encode"} | stages and collector.services == {"pictures"}
    root = spans["POST /encode"]
    assert root.kind == Span.SPAN_KIND_SERVER
    for name in stages:
        span = spans[name]
        assert span.trace_id.hex() == TRACE and span.parent_span_id == root.span_id
        assert root.start_time_unix_nano <= span.start_time_unix_nano <= span.end_time_unix_nano
        assert span.end_time_unix_nano <= root.end_time_unix_nano
    order = [spans[name].start_time_unix_nano for name in ("fetch", "probe", "prep", "queue", "copy_in", "encode")]
    assert order == sorted(order)
    ran = {a.key: a.value.string_value or a.value.int_value for a in spans["encode"].attributes}
    assert ran == {"foveal.image": 0, "foveal.mode": "static", "foveal.budget": 64}


def test_without_its_collector_a_server_answers_and_ends_as_ever() -> None:
    with serving(*FLAGS, "--otel-endpoint", "http://127.0.0.1:9", variables=SOON) as running:
        for seed in range(3):
            answer = httpx.post(running.url + "/encode", content=noise(64, 64, seed), headers=CALLERS, trust_env=False)
            assert answer.status_code == 200
        running.process.terminate()
        assert running.process.wait(20) == 0


def test_the_setting_without_the_packages_ends_with_exit_code_2_and_a_sentence() -> None:
    program = (
        "import sys; sys.modules['opentelemetry.sdk.trace'] = None; from foveal.cli import main; "
        "sys.exit(main(['serve', '--port', '0', '--otel-endpoint', 'http://collector:4318']))"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2 and "pip install 'foveal[otel]'" in ended.stderr
    assert "Traceback" not in ended.stderr and "listens on" not in ended.stdout
