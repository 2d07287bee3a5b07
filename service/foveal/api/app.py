"""`create_app`: assembles routes, error table and middleware; decides nothing."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, PlainTextResponse

from foveal import __version__
from foveal.api import describe, encode, encoder_role, exposition, gateway, handover
from foveal.api.context import Server
from foveal.api.cors import with_cors
from foveal.api.direct import Application
from foveal.api.errors import on_foveal_error, on_http_exception
from foveal.api.middleware import RequestMiddleware, expect_routes
from foveal.api.openapi import EMBEDDINGS, ENCODE, ENCODER_CHAT, ERRORS, FETCH
from foveal.api.openapi_models import MODEL
from foveal.api.sglang import add_sglang_routes
from foveal.errors import FovealError


def create_app(server: Server) -> FastAPI:
    """The ASGI application of one server."""
    app = Application(title="foveal", version=__version__, description="Images in, vision-encoder embeddings out.")
    app.state.server = server
    app.add_exception_handler(FovealError, on_foveal_error)
    app.add_exception_handler(HTTPException, on_http_exception)
    for path, work, extra in (("/encode", encode.encode, ENCODE), ("/v1/embeddings", encode.embeddings, EMBEDDINGS)):
        app.add_api_route(
            path, work, methods=["POST"], response_model=None, responses=dict(ERRORS), openapi_extra=extra
        )
    fetching: dict[str, Any] = {"path": "/embeddings/{key}", "response_model": None}
    app.add_api_route(endpoint=handover.fetch, methods=["GET"], responses=dict(ERRORS), openapi_extra=FETCH, **fetching)
    app.add_api_route(endpoint=handover.peek, methods=["HEAD"], include_in_schema=False, **fetching)
    if not server.settings.llm_url:
        app.add_api_route(
            "/v1/chat/completions",
            encoder_role.chat_completions,
            methods=["POST"],
            response_model=None,
            responses=dict(ERRORS),
            openapi_extra=ENCODER_CHAT,
        )
    describing = {
        "/live": describe.live,
        "/ready": describe.ready,
        "/health": describe.ready,
        "/info": describe.info,
        "/metrics": exposition.metrics,
        "/v1/models": gateway.models if server.upstreams else describe.models,
    }
    for path, endpoint in describing.items():
        kind = PlainTextResponse if path == "/metrics" else JSONResponse
        refusals: dict[int | str, dict[str, Any]] = {
            code: ERRORS[code] for code in (() if path == "/live" else (401, 503))
        }
        app.add_api_route(path, endpoint, methods=["GET"], response_model=None, response_class=kind, responses=refusals)
        app.add_api_route(path, endpoint, methods=["HEAD"], response_model=None, include_in_schema=False)
    listed: dict[str, Any] = {"path": "/v1/models/{model:path}", "response_model": None}
    listed["endpoint"] = gateway.model if server.upstreams else describe.model
    errors: dict[int | str, dict[str, Any]] = {code: ERRORS[code] for code in (401, 404, 503)}
    app.add_api_route(methods=["GET"], responses=errors, openapi_extra=MODEL, **listed)
    app.add_api_route(methods=["HEAD"], include_in_schema=False, **listed)
    add_sglang_routes(app, server)
    gateway.add_gateway_routes(app, server)
    expect_routes(server.metrics, app.router)
    app.add_middleware(RequestMiddleware, server=server, router=app.router)
    app.add_middleware(with_cors, origins=server.settings.cors_origin)
    busy = {"/encode": encode.encode, "/v1/embeddings": encode.embeddings}
    origins = server.settings.cors_origin
    app.serve_directly(busy, lambda endpoint: with_cors(RequestMiddleware(endpoint, server, app.router), origins))
    return app
