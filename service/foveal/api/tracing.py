"""OpenTelemetry: one server span for each request, with a child for each stage, written when the request is over.

Nothing of it is imported unless `--otel-endpoint` is set. The provider is our own and not the process's: no library
adds spans. Sampling, headers, attributes and batches are set by the standard OTEL_* variables, which the SDK reads.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from foveal import __version__
from foveal.engine.stages import Stage, Stages
from foveal.errors import ConfigurationError
from foveal_client._proxies import is_this_machine

if TYPE_CHECKING:
    import requests
    from opentelemetry.sdk.trace import TracerProvider

log = logging.getLogger(__name__)

MAX_IMAGES = 8
"""Images of one request whose stages become spans."""
FLUSH_SECONDS = 2.0
"""For the last spans, when the server stops."""
_CARRIED = ("traceparent", "tracestate")


def make_tracing(endpoint: str | None) -> Tracing | None:
    """Spans for an OTLP/HTTP collector at this base URL; raises ConfigurationError without the packages for it."""
    if endpoint is None:
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"--otel-endpoint needs the package {error.name}: pip install 'foveal[otel]', or leave the setting out"
        ) from None
    ours = Resource({"service.name": "foveal", "service.version": __version__})
    resource = ours.merge(OTELResourceDetector().detect())  # OTEL_SERVICE_NAME and the like win
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    exporter = OTLPSpanExporter(f"{endpoint.rstrip('/')}/v1/traces", session=_session(endpoint))
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return Tracing(provider)


def _session(endpoint: str) -> requests.Session | None:
    """For a collector on this machine one that asks no proxy; else the exporter's own, which has variables for all."""
    if not is_this_machine(urlsplit(endpoint).hostname or ""):
        return None
    import requests

    session = requests.Session()
    session.trust_env = False
    return session


class Tracing:
    """Writes spans to a provider."""

    def __init__(self, provider: TracerProvider) -> None:
        from opentelemetry import trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._trace, self._propagator = trace, TraceContextTextMapPropagator()
        self._provider = provider
        self._tracer = provider.get_tracer("foveal", __version__)

    def record(
        self,
        name: str,
        began: float,
        headers: Mapping[str, str],
        attributes: Mapping[str, Any],
        stages: Stages,
        images: Mapping[int, Stages],
    ) -> str:
        """Write the spans of a request that is over; its trace id in hex. `began` is of time.monotonic().

        A caller's `traceparent` is the parent; one that is malformed is none. Of an image that another request had
        under way before this one came, only what this one waited for is shown.
        """
        offset = time.time_ns() - time.monotonic_ns()
        now = time.monotonic()
        carrier = {key: headers[key] for key in _CARRIED if key in headers}
        parent = self._propagator.extract(carrier)
        kind = self._trace.SpanKind.SERVER
        span = self._tracer.start_span(name, parent, kind, attributes, start_time=_at(began, offset))
        if int(attributes["http.response.status_code"]) >= 500:
            span.set_status(self._trace.StatusCode.ERROR)
        if span.is_recording():
            around = self._trace.set_span_in_context(span)
            for stage, more in _children(stages, images, began):
                child = self._tracer.start_span(
                    stage.name, around, attributes=more, start_time=_at(stage.began, offset)
                )
                child.end(_at(stage.ended, offset))
        span.end(_at(now, offset))
        return format(span.get_span_context().trace_id, "032x")

    async def stop(self) -> None:
        """Hand over the last spans; not for ever, since the collector may be gone."""
        loop, done = asyncio.get_running_loop(), asyncio.Event()

        def flush() -> None:
            self._provider.shutdown()
            with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile: nobody waits
                loop.call_soon_threadsafe(done.set)

        threading.Thread(target=flush, name="last spans", daemon=True).start()
        try:
            async with asyncio.timeout(FLUSH_SECONDS):
                await done.wait()
        except TimeoutError:
            log.warning("the last spans could not be handed over", extra={"seconds": FLUSH_SECONDS})


def _children(stages: Stages, images: Mapping[int, Stages], began: float) -> Iterator[tuple[Stage, dict[str, Any]]]:
    for stage in stages.passed:
        yield stage, {}
    for place, image in sorted(images.items())[:MAX_IMAGES]:
        more = {"foveal.image": place}
        ran = {"foveal.mode": image.mode, "foveal.budget": image.budget} if image.mode else {}
        for stage in _since(image.passed, began):
            yield stage, more | (ran if stage.name == "encode" else {})


def _since(stages: Iterable[Stage], moment: float) -> Iterator[Stage]:
    for stage in stages:
        if stage.ended > moment:
            yield stage._replace(began=max(stage.began, moment))


def _at(moment: float, offset: int) -> int:
    """Nanoseconds since the epoch."""
    return int(moment * 1e9) + offset
