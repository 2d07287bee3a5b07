"""`PassedOn`: an LLM server's answer on its way to the caller, chunk by chunk as it comes; and how a request ended."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from types import TracebackType
from typing import Any, Self

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from foveal.api.context import Server, context_of
from foveal.api.serving import unless_gone, until_gone
from foveal.errors import DeadlineExceeded, Draining, Unavailable
from foveal.handover.exchange import BrokenOff, Exchange
from foveal.handover.headers import to_caller
from foveal.metrics import Metrics

log = logging.getLogger(__name__)

LAST_CHUNKS, LOOKED_AT_BYTES = 3, 4096
"""Of an answer to embeddings, searched for what ended it; a stream's last event is often an empty one."""
LINGER_SECONDS = 2.0
"""For what was passed on to go out, when the rest will not come."""


class Outcome:
    """Counts one request by what became of it, when it is over. A context manager."""

    def __init__(self, metrics: Metrics) -> None:
        self.kind = ""
        """As decided; empty: as the error says."""
        self._metrics = metrics
        self._is_asking = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._metrics.gateway_requests.labels(self.kind or self._kind_of(error)).inc()

    async def of_asking(self, request: Request, exchange: Exchange) -> None:
        """Open the exchange, unless the caller leaves; raises what `open` raises, or ClientDisconnect."""
        context, began = context_of(request), time.monotonic()
        self._is_asking, context.stages.current = True, "llm"
        try:
            await unless_gone(request.receive, exchange.open())
        finally:
            context.stages.record("llm", time.monotonic() - began)
            context.facts |= {"upstream": exchange.upstream_name, "upstreams_tried": exchange.num_asked}

    def _kind_of(self, error: BaseException | None) -> str:
        if isinstance(error, ClientDisconnect | asyncio.CancelledError):
            return "gone"
        if isinstance(error, Unavailable) and (self._is_asking or not error.retryable):  # none that may be asked
            return "unreachable"
        if self._is_asking and isinstance(error, DeadlineExceeded):
            return "slow"
        return "refused"


class PassedOn(Response):
    """Passes status, headers and chunks; ends the connection where the LLM server broke off."""

    def __init__(
        self, server: Server, exchange: Exchange, outcome: Outcome, stack: contextlib.AsyncExitStack, times: str | None
    ) -> None:
        self._server, self._exchange, self._outcome = server, exchange, outcome
        self.status_code, self.background = exchange.status, None
        self.raw_headers = to_caller(exchange.headers, with_cors=not server.settings.cors_origin)
        if times is not None:
            self.raw_headers.append((b"server-timing", times.encode()))
        self._stack = stack.pop_all()  # nothing fails from here on: a visit that nobody ends keeps a drain waiting

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send what comes, as it comes. A caller who leaves ends the request at the LLM server at once."""
        context, began = context_of(Request(scope)), time.monotonic()
        context.stages.current = "stream"
        async with self._stack:
            try:
                with self._server.open_request():
                    await unless_gone(receive, self._pass(send))
                self._outcome.kind = "llm_error" if self.status_code >= 500 else "answered"
            except (BrokenOff, Draining) as error:
                self._outcome.kind, context.code = "broken_off", Unavailable.code
                name = self._exchange.upstream_name
                facts = {"request_id": context.request_id, "upstream": name, "error": str(error)}
                log.warning("the answer of an LLM server was broken off", extra=facts)
                await _break_off(scope.get("foveal.transport"), receive)
            finally:
                context.stages.record("stream", time.monotonic() - began)

    async def _pass(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        last: deque[bytes] = deque(maxlen=LAST_CHUNKS)
        async with contextlib.aclosing(self._exchange.chunks()) as chunks:
            async for chunk in chunks:
                last.append(chunk)
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        if self._exchange.has_embeddings:
            self._exchange.answered_with(b"".join(chunk[:LOOKED_AT_BYTES] for chunk in last))
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _break_off(transport: Any, receive: Receive) -> None:
    """End the connection without an end of the answer, when what was passed on has gone out or time is up."""
    if transport is None:
        return  # whoever called this application sees an answer without an end
    transport.close()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LINGER_SECONDS):
            await until_gone(receive)
    transport.abort()
