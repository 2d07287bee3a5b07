"""Turns every error into the contract's JSON, in one place. A refusal before the body was read closes politely."""

from __future__ import annotations

import asyncio
import contextlib
import math
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from foveal.api.context import RequestContext, context_of
from foveal.errors import FovealError, InvalidRequest, MethodNotAllowed, NotFound

LINGER_SECONDS = 1.0
LINGER_BYTES = 32 << 20


class RefusalResponse(JSONResponse):
    """Answers while the body still arrives, then reads a little on before the connection closes.

    Closing at once would make the kernel reset the connection, and the caller would lose the answer.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send, linger, close."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": self.body, "more_body": True})
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LINGER_SECONDS):
                await _discard(receive)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _discard(receive: Receive) -> None:
    read = 0
    while read < LINGER_BYTES:
        message = await receive()
        read += len(message.get("body", b""))
        if message["type"] == "http.disconnect" or not message.get("more_body", False):
            return


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


def error_response(context: RequestContext, error: FovealError) -> Response:
    """The answer to a failed request."""
    context.code = error.code
    headers: dict[str, str] = {}
    if error.retry_after is not None:
        headers["Retry-After"] = str(max(1, math.ceil(error.retry_after)))
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    body = error_body(error, context.request_id)
    if context.body_is_read:
        return JSONResponse(body, error.status, headers)
    return RefusalResponse(body, error.status, {**headers, "Connection": "close"})


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
