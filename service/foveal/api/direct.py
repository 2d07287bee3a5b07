"""Serves the busy routes beside FastAPI's layers, which cost a request more time than being refused does.

FastAPI knows these routes too: for the schema, and for whoever comes with another method.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from foveal.api.context import context_of
from foveal.api.errors import error_response
from foveal.errors import FovealError

Endpoint = Callable[[Request], Awaitable[Response]]


class Application(FastAPI):
    """FastAPI, and a shorter way for POST to some paths."""

    _direct: Mapping[str, ASGIApp] = {}

    def serve_directly(self, endpoints: Mapping[str, Endpoint], layer: Callable[[ASGIApp], ASGIApp]) -> None:
        """POST to these paths goes through `layer` to the endpoint, and through nothing else."""
        self._direct = {path: layer(_answering(self, endpoint)) for path, endpoint in endpoints.items()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        app = self._direct.get(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        if app is None:
            await super().__call__(scope, receive, send)
        else:
            await app(scope, receive, send)


def _answering(app: FastAPI, endpoint: Endpoint) -> ASGIApp:
    """The endpoint as an application of its own; raises what is no FovealError."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        scope["app"] = app
        request = Request(scope, receive, send)
        try:
            response = await endpoint(request)
        except FovealError as error:
            response = error_response(context_of(request), error)
        await response(scope, receive, send)

    return answer
