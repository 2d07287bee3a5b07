"""The outermost layer, in plain ASGI: request id, one log line and the counters of each request, and the last
net under the routes: what nobody expected becomes `internal`, with its traceback in the log only.
"""

from __future__ import annotations

import logging
import time

from starlette.requests import ClientDisconnect
from starlette.routing import Match, Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from foveal.api.context import RequestContext, Server, open_context
from foveal.api.errors import error_response
from foveal.errors import FovealError

log = logging.getLogger("foveal.requests")

GONE = 499
"""Status in log and metrics of a caller who left before an answer; nobody receives it."""
QUIET = frozenset({"/live", "/ready", "/health", "/metrics"})


class RequestMiddleware:
    """Wraps the whole application."""

    def __init__(self, app: ASGIApp, server: Server, router: Router) -> None:
        self._app, self._server, self._router = app, server, router

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
        metrics = self._server.metrics
        metrics.requests.labels(route, str(status), context.code).inc()
        metrics.request_seconds.labels(route).observe(seconds)
        metrics.egress_bytes.inc(answer.num_bytes)
        level = logging.DEBUG if scope["path"] in QUIET else logging.INFO
        facts = {"route": route, "method": scope["method"], "status": status, "code": context.code}
        facts |= {"seconds": round(seconds, 6), "bytes": answer.num_bytes, "request_id": context.request_id}
        log.log(level, "request", extra=facts | context.facts)

    def _route(self, scope: Scope) -> str:
        """The path as registered, so that the label has few values."""
        for route in self._router.routes:
            match, _ = route.matches(scope)
            if match is not Match.NONE:
                return str(getattr(route, "path", "other"))
        return "other"


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
