"""The outermost layer, in plain ASGI: request id, one log line and the counters of each request, and the last
net under the routes: what nobody expected becomes `internal`, with its traceback in the log only.
"""

from __future__ import annotations

import logging
import time
from typing import Any

from fastapi.routing import APIRoute
from starlette.requests import ClientDisconnect, HTTPConnection
from starlette.routing import Match, Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from foveal.api.account import facts_of
from foveal.api.context import RequestContext, Server, open_context
from foveal.api.errors import error_response
from foveal.api.tracing import Tracing
from foveal.errors import FovealError
from foveal.metrics import GONE, Metrics, exemplar

log = logging.getLogger("foveal.requests")

QUIET = frozenset({"/live", "/ready", "/health", "/metrics"})
SHOWN = ("request_id", "code", "failed_in", "param", "images", "tokens", "cached", "mode")
"""Of a log line's facts, those that a span has too."""
OTHER = "other"
"""As which all paths that are not registered count."""


def expect_routes(metrics: Metrics, router: Router) -> None:
    """Series for each documented route from the start."""
    metrics.expect_route(OTHER, does_work=False)
    for route in router.routes:
        if isinstance(route, APIRoute) and route.include_in_schema:
            metrics.expect_route(route.path, does_work="POST" in (route.methods or ()))


class RequestMiddleware:
    """Wraps the whole application."""

    def __init__(self, app: ASGIApp, server: Server, router: Router) -> None:
        self._app, self._server, self._router = app, server, router
        paths = (str(getattr(route, "path", "{")) for route in router.routes)
        self._paths = frozenset(path for path in paths if "{" not in path)
        """Those without parameters, which are what they match; to go through all routes costs 50 µs."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        context = open_context(scope)
        answer = _Answer(context, send)
        try:
            await self._app(scope, receive, answer.send)
        except ClientDisconnect:
            context.code = "gone"
        except Exception:
            log.exception("unexpected error: this is a bug", extra={"request_id": context.request_id})
            if not answer.status:
                error = FovealError("the server failed in a way it should not; please report the request id")
                await error_response(context, error)(scope, receive, answer.send)
        finally:
            self._finish(scope, context, answer)

    def _finish(self, scope: Scope, context: RequestContext, answer: _Answer) -> None:
        route = self._route(scope)
        status = answer.status or GONE
        if not answer.status and context.code == "ok":
            context.code = "gone"
        seconds = time.monotonic() - context.arrival
        facts = {"route": route, "method": scope["method"], "status": status, "code": context.code}
        facts |= {"seconds": round(seconds, 6), "bytes": answer.num_bytes, "request_id": context.request_id}
        facts |= facts_of(context)
        is_quiet = scope["path"] in QUIET
        if self._server.tracing is not None and not is_quiet:
            facts["trace_id"] = self._trace(self._server.tracing, scope, context, facts)
        metrics = self._server.metrics
        metrics.requests.labels(route, str(status), context.code).inc()
        label = exemplar(context.request_id, facts.get("trace_id", ""))
        metrics.request_seconds.labels(route).observe(seconds, label)
        metrics.egress_bytes.inc(answer.num_bytes)
        log.log(logging.DEBUG if is_quiet else logging.INFO, "request", extra=facts)

    def _trace(self, tracing: Tracing, scope: Scope, context: RequestContext, facts: dict[str, Any]) -> str:
        attributes = {f"foveal.{name}": facts[name] for name in SHOWN if name in facts}
        attributes |= {"http.request.method": facts["method"], "http.route": facts["route"]}
        attributes |= {"http.response.status_code": facts["status"], "http.response.body.size": facts["bytes"]}
        name = f"{facts['method']} {facts['route']}"
        headers = HTTPConnection(scope).headers
        return tracing.record(name, context.arrival, headers, attributes, context.stages, context.images)

    def _route(self, scope: Scope) -> str:
        """The path as registered, so that the label has few values."""
        if (path := scope["path"]) in self._paths:
            return str(path)
        for route in self._router.routes:
            match, _ = route.matches(scope)
            if match is not Match.NONE:
                return str(getattr(route, "path", OTHER))
        return OTHER


class _Answer:
    """Adds the request id to the head and counts what goes out."""

    def __init__(self, context: RequestContext, send: Send) -> None:
        self.status = 0
        self.num_bytes = 0
        self._context, self._send = context, send

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message["headers"] = [*message["headers"], (b"x-request-id", self._context.request_id.encode())]
        elif message["type"] == "http.response.body":
            self.num_bytes += len(message.get("body", b""))
        await self._send(message)
