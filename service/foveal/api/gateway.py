"""`POST /v1/chat/completions` and the rest of `/v1/`: pictures become embeddings, everything else passes through.

What is around a picture, keys to deadlines, is as for `/encode`. Once the LLM server has a request's bytes, nothing of
it is held here but two connections; the request stays open, so that a drain waits for its answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import msgspec
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from foveal.api import describe
from foveal.api.context import Server, context_of, server_of
from foveal.api.gateway_answer import Outcome, PassedOn
from foveal.api.gateway_pictures import ToSend, with_embeddings
from foveal.api.keys import require_key
from foveal.api.openapi import ERRORS
from foveal.api.serving import Entered, body_of, enter, within
from foveal.errors import FovealError, MethodNotAllowed, NotFound
from foveal.handover.exchange import Ask, BrokenOff, Exchange
from foveal.handover.headers import to_llm
from foveal.handover.outgoing import Outgoing
from foveal.handover.upstreams import Upstreams

log = logging.getLogger(__name__)

CHAT_PATH = "/v1/chat/completions"
OWN = frozenset({"/v1/embeddings", "/v1/models"})
"""Answered here, whatever the LLM server would say."""
MODELS_SECONDS = 5.0
MAX_MODELS_BYTES = 1 << 20
_METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]

_CHAT = {
    "summary": "Chat with an LLM server; pictures are encoded here",
    "requestBody": {"required": True, "content": {"application/json": {"schema": {"type": "object"}}}},
    "responses": {"200": {"description": "The LLM server's answer, streamed where the request says so"}},
}


class _Models(msgspec.Struct):
    data: list[dict[str, Any]]


Prepare = Callable[[Request, Entered], Awaitable[ToSend]]
"""Reads a request; gives what is to be sent."""


def add_gateway_routes(app: FastAPI, server: Server) -> None:
    """The routes of the gateway, where `--llm-url` is set. Must come after all of the server's own below `/v1/`."""
    if server.upstreams is None:
        return
    app.add_api_route(
        CHAT_PATH, chat, methods=["POST"], response_model=None, responses=dict(ERRORS), openapi_extra=_CHAT
    )
    app.add_api_route("/v1/{path:path}", pass_on, methods=_METHODS, response_model=None, include_in_schema=False)


async def chat(request: Request) -> Response:
    """A chat request whose pictures are encoded here."""
    return await _serve(request, CHAT_PATH.encode(), with_embeddings)


async def pass_on(request: Request) -> Response:
    """Any other request, as it is."""
    path = request.scope["path"]
    if path in OWN:
        raise MethodNotAllowed(f"{request.method} {path}: Method Not Allowed")
    # others would be served past this server by a redirect of the LLM server's, or lead out of its /v1/
    if path.rstrip("/") != path or {".", ".."} & set(path.split("/")):
        raise NotFound(f"{request.method} {path}: Not Found")
    return await _serve(request, request.scope["raw_path"], _as_it_is)


async def models(request: Request) -> Response:
    """OpenAI's list: the LLM server's models, which clients choose from, then this server's own."""
    server = server_of(request)
    require_key(request, server.keys)
    own = describe.own_models(server)
    # a list that is short is of more use than none; who looks for the LLM finds it missing, and the reason in the log
    return JSONResponse({"object": "list", "data": _merged(await _upstream_models(request, server) or [], own)})


async def model(request: Request) -> Response:
    """One of these models, by its name; raises ModelNotFound. An LLM server that gives no list is asked itself."""
    server, name = server_of(request), request.path_params["model"]
    require_key(request, server.keys)
    if not name:
        return await models(request)
    own = describe.own_models(server)
    if name == own[0]["id"]:
        return describe.one_model(request, own)
    found = await _upstream_models(request, server)
    return await pass_on(request) if found is None else describe.one_model(request, _merged(found, own))


def _merged(found: list[dict[str, Any]], own: list[dict[str, Any]]) -> list[dict[str, Any]]:
    names = {entry.get("id") for entry in found}
    return [*found, *(entry for entry in own if entry["id"] not in names)]


async def _upstream_models(request: Request, server: Server) -> list[dict[str, Any]] | None:
    """What the LLM server lists; None, and a line in the log, where it gives no list."""
    assert server.upstreams is not None, "a route of the gateway without --llm-url: this is a bug"
    try:
        async with asyncio.timeout(MODELS_SECONDS):
            return await _listed(request, server, server.upstreams)
    except (TimeoutError, FovealError, BrokenOff, ValueError) as error:
        log.warning("the LLM server's models are not known", extra={"error": f"{type(error).__name__}: {error}"})
        return None


async def _listed(request: Request, server: Server, upstreams: Upstreams) -> list[dict[str, Any]]:
    exchange = Exchange(upstreams, _ask(request, server, b"/v1/models"), None, counts=False)
    try:
        await exchange.open()
        body = b""
        async for chunk in exchange.chunks():
            body += chunk
            if len(body) > MAX_MODELS_BYTES:
                raise ValueError(f"more than {MAX_MODELS_BYTES} bytes")
    finally:
        await exchange.aclose()
    if exchange.status != 200:
        raise ValueError(f"status {exchange.status}")
    return msgspec.json.decode(body, type=_Models).data


async def _serve(request: Request, path: bytes, prepare: Prepare) -> Response:
    """Enter, prepare, send; what is answered then passes through as it comes."""
    server = server_of(request)
    upstreams = server.upstreams
    assert upstreams and server.watch, "a route of the gateway without --llm-url: this is a bug"
    async with contextlib.AsyncExitStack() as stack:
        outcome = stack.enter_context(Outcome(server.metrics))
        entered = enter(request, stack)
        with server.open_request():
            ready = await within(entered.deadline, request, prepare(request, entered))
            query = request.scope["query_string"]
            ask = _ask(request, server, path + (b"?" + query if query else b""))
            check = partial(server.watch.before_embeddings, model=ready.model) if ready.has_embeddings else None
            exchange, times = Exchange(upstreams, ask, ready.body, entered.visit.give_back, check=check), ready.times
            del ready  # the exchange lets go of it as soon as it is sent
            stack.push_async_callback(exchange.aclose)
            await outcome.of_asking(request, exchange)
        return PassedOn(server, exchange, outcome, stack, times)


def _ask(request: Request, server: Server, target: bytes) -> Ask:
    settings = server.settings
    key = settings.llm_api_key.get_secret_value() if settings.llm_api_key else None
    headers = to_llm(request.headers.raw, context_of(request).request_id, key, passes_authorization=not server.keys)
    return Ask(request.method, target, headers)


async def _as_it_is(request: Request, entered: Entered) -> ToSend:
    body = await body_of(request, entered.server, entered.visit)
    has_body = bool(body) or "content-length" in request.headers or "transfer-encoding" in request.headers
    return ToSend(Outgoing([body]) if has_body else None)
