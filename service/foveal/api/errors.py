"""Turns every error into the contract's JSON, in one place. A refusal before the body was read closes politely."""

from __future__ import annotations

import asyncio
import contextlib
import math
from typing import Any

import orjson
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from foveal.api.context import RequestContext, context_of
from foveal.errors import FovealError, InvalidRequest, MethodNotAllowed, NotFound

LINGER_SECONDS = 10.0
LINGER_BYTES = 1 << 30
KEPT_BYTES = 8 << 20
"""Of a refused body behind which the connection stays."""
SILENCE_SECONDS = 1.0
"""A caller who sends nothing for so long has read its answer, or never will."""


class ErrorResponse(Response):
    """An error object as JSON."""

    media_type = "application/json"

    def render(self, content: dict[str, Any]) -> bytes:
        """Its bytes."""
        return orjson.dumps(content)


class RefusalResponse(ErrorResponse):
    """Answers while the body still arrives, then reads on and keeps nothing of it, for a while.

    Closing at once would make the kernel reset the connection, and a caller who sends all before it reads would lose
    the answer. Behind a short body that came whole the connection stays: to open another would cost more. One that
    waits for a 100 does not know whether to send its body, so there it is closed.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send, linger, close unless the body has ended."""
        headers = Headers(scope=scope)
        length = headers.get("content-length", "")
        stays = length.isdigit() and int(length) <= KEPT_BYTES and "expect" not in headers
        head = self.raw_headers if stays else [*self.raw_headers, (b"connection", b"close")]
        await send({"type": "http.response.start", "status": self.status_code, "headers": head})
        await send({"type": "http.response.body", "body": self.body, "more_body": True})
        has_ended = False
        with contextlib.suppress(TimeoutError):
            has_ended = await _discard(receive)
        await send({"type": "http.response.body", "body": b"", "more_body": False})
        transport = scope.get("foveal.transport")
        if transport is not None and not has_ended:
            transport.close()


async def _discard(receive: Receive) -> bool:
    """Read to the body's end, or as much as is read for nobody: then False. Raises TimeoutError."""
    loop, left = asyncio.get_running_loop(), LINGER_BYTES
    end = loop.time() + LINGER_SECONDS
    async with asyncio.timeout(SILENCE_SECONDS) as silence:
        while left > 0:
            message = await receive()
            if not message.get("more_body", False):  # nor in a disconnect
                return bool(message["type"] == "http.request")
            left -= len(message["body"])
            silence.reschedule(min(end, loop.time() + SILENCE_SECONDS))
    return False


def error_body(error: FovealError, request_id: str) -> dict[str, Any]:
    """The contract's error object."""
    return {
        "error": {
            "code": error.code,
            "message": error.message,
            "type": error.type,
            "param": error.param,
            "retryable": error.retryable,
            "request_id": request_id,
        }
    }


def error_response(context: RequestContext, error: FovealError, **beside: object) -> Response:
    """The answer to a failed request; `beside` is put into its JSON, for callers with words of their own."""
    context.code, context.param = error.code, error.param
    headers: dict[str, str] = {}
    if error.retry_after is not None:
        headers["Retry-After"] = str(max(1, math.ceil(error.retry_after)))
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    body = error_body(error, context.request_id) | beside
    if context.body_is_read:
        return ErrorResponse(body, error.status, headers)
    return RefusalResponse(body, error.status, headers)


async def on_foveal_error(request: Request, error: Exception) -> Response:
    """Handler of our own errors."""
    assert isinstance(error, FovealError)
    return error_response(context_of(request), error)


async def on_http_exception(request: Request, error: Exception) -> Response:
    """Handler of the framework's own refusals: unknown route, wrong method."""
    assert isinstance(error, HTTPException)
    kinds: dict[int, type[FovealError]] = {404: NotFound, 405: MethodNotAllowed}
    kind = kinds.get(error.status_code, InvalidRequest)
    response = error_response(context_of(request), kind(f"{request.method} {request.url.path}: {error.detail}"))
    response.headers.update(error.headers or {})
    return response
