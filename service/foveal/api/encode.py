"""`POST /encode` and `POST /v1/embeddings`: read, fetch, ask the engine, write."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from foveal.api.answers import json_buffers, safetensors_buffers
from foveal.api.body import read_body
from foveal.api.context import Server, context_of, server_of
from foveal.api.intake import read_intake
from foveal.api.keys import require_key
from foveal.api.openai import read_embeddings_request, write_embeddings
from foveal.api.options import wishes_of
from foveal.engine.admission import Visit
from foveal.engine.assembly import Service
from foveal.engine.items import Encoded, Wishes
from foveal.errors import DeadlineExceeded, InvalidRequest, Unavailable
from foveal.fetch.body import Allowance
from foveal.fetch.images import Source, fetch_images

SAFETENSORS = "application/vnd.foveal.safetensors"
MAX_TIMEOUT_DIGITS = 12
_BINARY = (SAFETENSORS, "application/octet-stream")

Answer = tuple[str, Iterable[Any], list[Encoded]]
"""Media type, buffers, and what they show."""


async def encode(request: Request) -> Response:
    """Images in, embeddings out."""
    return await _serve(request, _encode)


async def embeddings(request: Request) -> Response:
    """OpenAI's shape, with images as input; pooled."""
    return await _serve(request, _embeddings)


Handler = Callable[[Request, Server, Service, Visit], Awaitable[Answer]]


async def _serve(request: Request, handle: Handler) -> Response:
    """Key, deadline, admission, disconnect: the same for both routes."""
    server = server_of(request)
    caller = require_key(request, server.keys)
    server.quotas.enter(caller)
    deadline = _deadline(request, server)
    if server.service is None:
        raise Unavailable(f"the server is starting ({server.waits_for}); try again", retry_after=2.0)
    with contextlib.ExitStack() as stack:
        charge = partial(server.quotas.charge, caller)
        visit = stack.enter_context(server.service.engine.gate.visit(caller, deadline, charge))
        with server.open_request():
            work = handle(request, server, server.service, visit)
            media_type, buffers, encoded = await _within(deadline, request, work)
        timing = _timing(request, server, encoded)
        # the visit goes on until the answer is sent, so the response ends it
        return EmbeddingsResponse(server, stack.pop_all(), deadline, media_type, buffers, timing)


async def _encode(request: Request, server: Server, service: Service, visit: Visit) -> Answer:
    body = await _body(request, server, visit)
    content_type, max_images = request.headers.get("content-type", ""), server.settings.max_images_per_request
    intake = read_intake(body, content_type, request.query_params, max_images, server.url_rules)
    del body
    wishes = wishes_of(intake.options, service.engine.spec)
    work = _fetch_and_encode(request, service, intake.images, "images", wishes, visit)
    encoded = await _unless_gone(request, work)
    if _wants_binary(request.headers.get("accept", "")):
        return SAFETENSORS, safetensors_buffers(service.engine.spec, encoded), encoded
    as_numbers = intake.options.encoding_format == "float"
    return "application/json", json_buffers(service.engine.spec, encoded, as_numbers), encoded


async def _embeddings(request: Request, server: Server, service: Service, visit: Visit) -> Answer:
    body = await _body(request, server, visit)
    max_images = server.settings.max_images_per_request
    asked = read_embeddings_request(body, service.engine.spec, max_images, server.url_rules)
    del body
    work = _fetch_and_encode(request, service, asked.images, "input", asked.wishes, visit)
    encoded = await _unless_gone(request, work)
    return "application/json", write_embeddings(service.engine.spec, encoded, asked.as_base64), encoded


async def _body(request: Request, server: Server, visit: Visit) -> bytes:
    body = await read_body(request, visit, server.settings.max_body_bytes)
    context = context_of(request)
    context.body_is_read = True
    context.facts["fetch"] = time.monotonic() - context.arrival
    return body


async def _fetch_and_encode(
    request: Request, service: Service, sources: Sequence[Source], param: str, wishes: Wishes, visit: Visit
) -> list[Encoded]:
    images = await _images(request, sources, param, visit)
    return await service.engine.encode(images, wishes, visit)


async def _images(request: Request, sources: Sequence[Source], param: str, visit: Visit) -> list[bytes]:
    """The bytes of all images. The `fetch` stage is the time of the body and of what it names by URL."""
    server, context, began = server_of(request), context_of(request), time.monotonic()
    try:
        allowance = Allowance(server.settings.max_body_bytes, visit.hold_body)
        return await fetch_images(sources, param, server.fetcher, allowance)
    finally:
        context.facts["fetch"] += time.monotonic() - began
        server.metrics.stage_seconds.labels("fetch").observe(context.facts["fetch"])


def _deadline(request: Request, server: Server) -> float:
    """The moment, in the loop's time, after which this request is not answered any more."""
    seconds = server.settings.request_timeout_seconds
    if (text := request.headers.get("x-request-timeout-ms")) is not None:
        if not (text.isascii() and text.isdigit() and len(text) <= MAX_TIMEOUT_DIGITS and int(text) > 0):
            raise InvalidRequest("X-Request-Timeout-Ms must be a whole number of milliseconds above 0")
        seconds = min(seconds, int(text) / 1000)
    waited = time.monotonic() - context_of(request).arrival
    return asyncio.get_running_loop().time() + seconds - waited


async def _within(deadline: float, request: Request, work: Awaitable[Answer]) -> Answer:
    try:
        async with asyncio.timeout_at(deadline):
            return await work
    except TimeoutError:
        spent = time.monotonic() - context_of(request).arrival
        raise DeadlineExceeded(
            f"the request was not done after {spent * 1000:.0f} ms, its deadline; allow more time or send less"
        ) from None


async def _unless_gone(request: Request, work: Awaitable[list[Encoded]]) -> list[Encoded]:
    """The result of `work`, stopped when the caller hangs up; raises ClientDisconnect then."""
    task = asyncio.ensure_future(work)
    watcher = asyncio.create_task(_until_gone(request))
    try:
        await asyncio.wait((task, watcher), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientDisconnect
    finally:
        watcher.cancel()
        if not task.done():
            task.cancel()
            await asyncio.wait((task,))
        if not task.cancelled():
            task.exception()  # seen, also where the caller's leaving came first
        del task  # no cycle with an error's traceback


async def _until_gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _wants_binary(accept: str) -> bool:
    parts = [part.lower().replace(" ", "").partition(";") for part in accept.split(",")]
    return any(kind in _BINARY and not re.fullmatch(r"q=0(\.0*)?", weight) for kind, _, weight in parts)


def _timing(request: Request, server: Server, encoded: Sequence[Encoded]) -> str:
    """The Server-Timing header; each stage is that of the image that spent most in it. Also counts and logs them."""
    context = context_of(request)
    stages = {"fetch": context.facts["fetch"]}
    for name in ("probe", "prep", "queue", "copy_in", "encode", "copy_out"):
        values = [getattr(e.timings, name) for e in encoded]
        stages[name] = max(values)
        for value in values:
            if value > 0:
                server.metrics.stage_seconds.labels(name).observe(value)
    stages["total"] = time.monotonic() - context.arrival
    context.facts |= {name: round(seconds, 6) for name, seconds in stages.items()}
    context.facts |= {"images": len(encoded), "tokens": sum(e.num_tokens for e in encoded)}
    return ", ".join(f"{name};dur={seconds * 1000:.3f}" for name, seconds in stages.items())


class EmbeddingsResponse(Response):
    """Sends buffers one by one, no faster than the caller reads, and ends the visit when all are handed over."""

    def __init__(
        self,
        server: Server,
        visit: contextlib.ExitStack,
        deadline: float,
        media_type: str,
        buffers: Iterable[Any],
        timing: str,
    ) -> None:
        self._server, self._visit, self._deadline, self._buffers = server, visit, deadline, buffers
        self.status_code, self.background = 200, None
        headers = {"content-type": media_type, "server-timing": timing}
        if isinstance(buffers, list):
            headers["content-length"] = str(sum(len(buffer) for buffer in buffers))
        self.init_headers(headers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the head, the buffers, the end. Past the deadline the connection is closed where it stands."""
        began = time.monotonic()
        transport = scope.get("foveal.transport")
        try:
            if transport is not None:
                if transport.is_closing():  # its caller left between the last look and here
                    raise ClientDisconnect
                # each send then waits until the kernel has taken the one before: the last of them ends the visit
                transport.set_write_buffer_limits(high=0)
            async with asyncio.timeout_at(self._deadline):
                await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                for buffer in self._buffers:
                    await send({"type": "http.response.body", "body": buffer, "more_body": True})
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        except TimeoutError:
            # what the caller has not read by now it will not get; closing would wait for it to read
            context_of(Request(scope)).code = DeadlineExceeded.code
            if transport is not None:
                transport.abort()
        finally:
            self._visit.close()
            self._server.metrics.stage_seconds.labels("serialize").observe(time.monotonic() - began)
