"""`create_app`: assembles routes, error table and middleware; decides nothing."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, PlainTextResponse

from foveal import __version__
from foveal.api import describe, encode
from foveal.api.context import Server
from foveal.api.errors import on_foveal_error, on_http_exception
from foveal.api.middleware import RequestMiddleware
from foveal.api.openapi import EMBEDDINGS, ENCODE, ERRORS
from foveal.errors import FovealError


def create_app(server: Server) -> FastAPI:
    """The ASGI application of one server."""
    app = FastAPI(title="foveal", version=__version__, description="Images in, vision-encoder embeddings out.")
    app.state.server = server
    app.add_exception_handler(FovealError, on_foveal_error)
    app.add_exception_handler(HTTPException, on_http_exception)
    for path, work, extra in (("/encode", encode.encode, ENCODE), ("/v1/embeddings", encode.embeddings, EMBEDDINGS)):
        app.add_api_route(
            path, work, methods=["POST"], response_model=None, responses=dict(ERRORS), openapi_extra=extra
        )
    describing = {
        "/live": describe.live,
        "/ready": describe.ready,
        "/health": describe.ready,
        "/info": describe.info,
        "/metrics": describe.metrics,
        "/v1/models": describe.models,
    }
    for path, endpoint in describing.items():
        kind = PlainTextResponse if path == "/metrics" else JSONResponse
        refusals: dict[int | str, dict[str, Any]] = {
            code: ERRORS[code] for code in (() if path == "/live" else (401, 503))
        }
        app.add_api_route(path, endpoint, methods=["GET"], response_model=None, response_class=kind, responses=refusals)
        app.add_api_route(path, endpoint, methods=["HEAD"], response_model=None, include_in_schema=False)
    app.add_middleware(RequestMiddleware, server=server, router=app.router)
    return app
