"""`POST /encode` and `POST /v1/embeddings`: read, fetch, ask the engine, write."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from foveal.api.answers import json_buffers, safetensors_buffers
from foveal.api.context import Server, context_of
from foveal.api.intake import read_intake
from foveal.api.openai import read_embeddings_request, write_embeddings
from foveal.api.options import wishes_of
from foveal.api.protocol import MAX_JOINED_BYTES
from foveal.api.serving import enter, fetched, pictures_of, timing, unless_gone, within
from foveal.engine.admission import Visit
from foveal.engine.items import Encoded, Wishes
from foveal.errors import DeadlineExceeded, InvalidRequest
from foveal.fetch.images import Source
from foveal.handover.safetensors import MEDIA_TYPE
from foveal.handover.service import NOTHING_HELD, HandoverService, hold
from foveal.metrics import exemplar

_BINARY = (MEDIA_TYPE, "application/octet-stream")

Answer = tuple[str, Iterable[Any], list[Encoded]]
"""Media type, buffers, and what they show."""


async def encode(request: Request) -> Response:
    """Images in, embeddings out."""
    return await serve(request, _encode)


async def embeddings(request: Request) -> Response:
    """OpenAI's shape, with images as input; pooled."""
    return await serve(request, _embeddings)


Handler = Callable[[Request, Server, HandoverService, Visit], Awaitable[Answer]]


async def serve(request: Request, handle: Handler) -> Response:
    """Key, deadline, admission, disconnect: the same for all routes that encode."""
    with contextlib.ExitStack() as stack:
        entered = enter(request, stack)
        server, visit = entered.server, entered.visit
        with server.open_request():
            work = handle(request, server, entered.service, visit)
            media_type, buffers, encoded = await within(entered.deadline, request, work)
        times = timing(request, server, encoded)
        # the visit goes on until the answer is sent, so the response ends it
        return EmbeddingsResponse(server, stack, entered.deadline, media_type, buffers, times)


async def _encode(request: Request, server: Server, service: HandoverService, visit: Visit) -> Answer:
    body = await pictures_of(request, server, service, visit)
    content_type, max_images = request.headers.get("content-type", ""), server.settings.max_images_per_request
    intake = read_intake(body, content_type, request.query_params, max_images, server.url_rules)
    del body
    spec, options = service.engine.spec, intake.options
    wishes, held = wishes_of(options, spec), options.deliver == "hold"
    if held and not service.handover.is_on:
        raise InvalidRequest(NOTHING_HELD, param="deliver")
    service.engine.expect(intake.images, wishes, visit)
    work = fetch_and_encode(request, service, intake.images, "images", wishes, visit)
    encoded = await unless_gone(request.receive, _and_hold(service, work) if held else work)
    if _wants_binary(request.headers.get("accept", "")):
        return MEDIA_TYPE, safetensors_buffers(spec, encoded, held), encoded
    return "application/json", json_buffers(spec, encoded, options.encoding_format == "float", held), encoded


async def _embeddings(request: Request, server: Server, service: HandoverService, visit: Visit) -> Answer:
    body = await pictures_of(request, server, service, visit)
    max_images = server.settings.max_images_per_request
    asked = read_embeddings_request(body, service.engine.spec, max_images, server.url_rules)
    del body
    service.engine.expect(asked.images, asked.wishes, visit, "input")
    work = fetch_and_encode(request, service, asked.images, "input", asked.wishes, visit)
    encoded = await unless_gone(request.receive, work)
    return "application/json", write_embeddings(service.engine.spec, encoded, asked.as_base64), encoded


async def _and_hold(service: HandoverService, work: Awaitable[list[Encoded]]) -> list[Encoded]:
    encoded = await work
    await hold(service, encoded)
    return encoded


async def fetch_and_encode(
    request: Request, service: HandoverService, sources: Sequence[Source], param: str, wishes: Wishes, visit: Visit
) -> list[Encoded]:
    """The embeddings of images that were sent or named; an error names the image as `param[i]`."""
    images = await fetched(request, sources, param, visit)
    return await service.engine.encode(images, wishes, visit, param)


def _wants_binary(accept: str) -> bool:
    parts = [part.lower().replace(" ", "").partition(";") for part in accept.split(",")]
    return any(kind in _BINARY and not re.fullmatch(r"q=0(\.0*)?", weight) for kind, _, weight in parts)


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
        on_sent: Callable[[], None] = lambda: None,
    ) -> None:
        self._server, self._deadline, self._buffers = server, deadline, buffers
        self._on_sent = on_sent
        self.status_code, self.background = 200, None
        headers = {"content-type": media_type, "server-timing": timing}
        if isinstance(buffers, list):
            num_bytes = sum(len(buffer) for buffer in buffers)
            headers["content-length"] = str(num_bytes)
            if num_bytes <= MAX_JOINED_BYTES:
                self._buffers = [b"".join(buffers)]
        self.init_headers(headers)
        self._visit = visit.pop_all()  # nothing fails from here on: a visit that nobody ends keeps a drain waiting

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the head, the buffers, the end. Past the deadline the connection is closed where it stands."""
        began, context = time.monotonic(), context_of(Request(scope))
        context.stages.current = "serialize"
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
                await send({"type": "http.response.body", "body": b"", "more_body": True})
                if transport is None or not transport.is_closing():  # the kernel has all, and its caller is still there
                    self._on_sent()
                await send({"type": "http.response.body", "body": b"", "more_body": False})
            context.stages.current = ""
        except TimeoutError:
            # what the caller has not read by now it will not get; closing would wait for it to read
            context.code = DeadlineExceeded.code
            if transport is not None:
                transport.abort()
        finally:
            self._visit.close()
            seconds = time.monotonic() - began
            context.stages.record("serialize", seconds)
            label = exemplar(context.request_id)
            self._server.metrics.stages["serialize"].observe(seconds, label)
