"""SGLang's encoder protocol: give `http://HOST:PORT/sglang` to `--encoder-urls` of a `--language-only` server.

The answer to a part carries no rows: they are pushed to sockets of the language server before it. Errors have the
contract's object, and beside it `message`, where SGLang looks.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from fastapi import FastAPI
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from foveal.api import describe
from foveal.api.body import read_body
from foveal.api.context import Server, context_of, server_of
from foveal.api.errors import error_response
from foveal.api.intake import images_of, read_object
from foveal.api.keys import require_key
from foveal.api.serving import Entered, body_of, enter, fetched, timing, unless_gone, within
from foveal.engine.admission import Gate
from foveal.engine.items import Encoded, Wishes
from foveal.errors import FovealError, InvalidRequest, Overloaded, Unavailable
from foveal.fetch.images import Source
from foveal.handover.sglang.bridge import PATH, Bridge, joined
from foveal.handover.sglang.hosts import Endpoint
from foveal.handover.sglang.part import Part, Receiver, check_hashes, read, read_part
from foveal.ipc.arena import Block
from foveal.types import Output

log = logging.getLogger(__name__)

MAX_SMALL_BODY = 64 << 10
ITEMS = "mm_items"
"""SGLang's name for the images of a part; errors name them so."""
AGAIN_SECONDS = 1.0
"""At most, before trying again what may pass."""
Result = TypeVar("Result")


def add_sglang_routes(app: FastAPI, server: Server) -> None:
    """The routes that a language server asks, where `--sglang` is on."""
    if server.sglang is None:
        return
    posts = {
        "/encode": encode,
        "/scheduler_receive_url": receive_url,
        "/scheduler_receive_meta_data": other_backend,
        "/send": other_backend,
    }
    for path, work in posts.items():
        app.add_api_route(PATH + path, work, methods=["POST"], response_model=None, include_in_schema=False)
    app.add_api_route(PATH + "/health", describe.ready, methods=["GET"], response_model=None, include_in_schema=False)


async def encode(request: Request) -> Response:
    """Encode the images of one part and push their rows to those who wait for them."""
    return await _answered(request, _encode)


async def receive_url(request: Request) -> Response:
    """A rank of a scheduler says where it waits for the rows of a part."""
    return await _answered(request, _receive_url)


async def other_backend(request: Request) -> Response:
    """What only the back end asks that is not spoken here."""
    return await _answered(request, _other_backend)


async def _answered(request: Request, work: Callable[[Request, Bridge], Awaitable[Response]]) -> Response:
    bridge = server_of(request).sglang
    assert bridge is not None, "a route of SGLang's without --sglang: this is a bug"
    try:
        return await work(request, bridge)
    except FovealError as error:
        named = error.at(re.sub(r"^images\b", ITEMS, error.param)) if error.param else error  # the engine's word
        return error_response(context_of(request), named, status="error", message=error.message)


async def _other_backend(request: Request, bridge: Bridge) -> Response:
    require_key(request, server_of(request).keys, as_password=True)
    raise InvalidRequest(
        "rows are pushed over ZeroMQ here, not through Mooncake; start the language server with "
        "--encoder-transfer-backend zmq_to_tokenizer"
    )


async def _receive_url(request: Request, bridge: Bridge) -> Response:
    with contextlib.ExitStack() as stack:
        entered = enter(request, stack, of_sglang=True)
        body = await within(entered.deadline, request, read_body(request, entered.visit, MAX_SMALL_BODY))
        context_of(request).body_is_read = True
        receiver = read(read_object(body), Receiver)
        endpoint = Endpoint.parse(receiver.receive_url)
        bridge.rules.check(endpoint, _address_of(request))
        bridge.receivers.post((_owner(entered), receiver.req_id), receiver.receive_count, endpoint)
    return JSONResponse(None)


async def _encode(request: Request, bridge: Bridge) -> Response:
    server = server_of(request)
    with contextlib.ExitStack() as stack:
        entered = enter(request, stack, of_sglang=True)
        with server.open_request():
            part, images = await within(entered.deadline, request, _read(request, entered))
        context_of(request).facts |= {"part": part.req_id, "backend": part.backend}
        async with _watched(part, bridge, server) as course:
            with server.open_request():
                bridge.check(part, _address_of(request))
                course.is_allowed = True
                work = _serve(request, entered, bridge, part, images, course, stack)
                encoded = await within(entered.deadline, request, unless_gone(request.receive, work))
        return JSONResponse(None, headers={"Server-Timing": timing(request, server, encoded)})


@dataclass
class _Course:
    """How far a part has come."""

    is_allowed: bool = False
    """True when its rows may go where it says."""
    is_encoded: bool = False


@contextlib.asynccontextmanager
async def _watched(part: Part, bridge: Bridge, server: Server) -> AsyncIterator[_Course]:
    """Counts what becomes of a part, and tells a tokenizer that waits for one that failed."""
    course, outcome = _Course(), "failed"
    try:
        yield course
        outcome = "sent"
    except ClientDisconnect:
        outcome = "gone"
        raise
    except FovealError as error:
        if course.is_encoded:
            outcome = "undelivered"
        elif error.status < 500:
            outcome = "refused"
        if course.is_allowed and not course.is_encoded:
            await bridge.report(part, error)
        raise
    finally:
        server.metrics.sglang_parts.labels(part.backend, outcome).inc()


async def _read(request: Request, entered: Entered) -> tuple[Part, list[Source]]:
    """The part, and its images as sent or as URL."""
    server = entered.server

    async def body_now() -> bytes:
        return await body_of(request, server, entered.visit)

    # refused for want of room, a body of known length is untouched and may be asked for again
    is_patient = "content-length" in request.headers
    body = await _patiently(entered.service.engine.gate, body_now) if is_patient else await body_now()
    part = read_part(read_object(body))
    return part, images_of(part.mm_items, ITEMS, server.settings.max_images_per_request, server.url_rules)


async def _serve(
    request: Request,
    entered: Entered,
    bridge: Bridge,
    part: Part,
    images: list[Source],
    course: _Course,
    stack: contextlib.ExitStack,
) -> list[Encoded]:
    work = partial(_encoded, request, entered, part, images, stack)
    patient = part.backend == "scheduler"
    encoded, rows = await (_patiently(entered.service.engine.gate, work) if patient else work())
    course.is_encoded = True
    await bridge.deliver(part, _owner(entered), encoded, rows)
    entered.server.metrics.egress_bytes.inc(len(rows.view))
    return encoded


async def _encoded(
    request: Request, entered: Entered, part: Part, images: list[Source], stack: contextlib.ExitStack
) -> tuple[list[Encoded], Block]:
    """One try. What it holds is held until `stack` is closed, or let go if it fails."""
    engine, caller = entered.service.engine, entered.visit.caller
    with contextlib.ExitStack() as attempt:
        charge = partial(entered.server.quotas.charge, caller)
        visit = attempt.enter_context(engine.gate.visit(caller, entered.deadline, charge, while_draining=True))
        context_of(request).images = visit.stages
        files = await fetched(request, images, ITEMS, visit)
        wishes = Wishes(Output("tokens", engine.spec.dtype))
        encoded = await engine.encode(files, wishes, visit)
        check_hashes(part.mm_items, encoded)
        rows = await joined(encoded, engine.memory.embeddings)
        visit.hold_answer(rows)
        stack.push(attempt.pop_all())
        return encoded, rows


async def _patiently(gate: Gate, work: Callable[[], Awaitable[Result]]) -> Result:
    """The result of `work`, tried again while it fails by what may pass: up to 0.5.23 a scheduler that is refused ends
    its server, and none asks again. The caller sets the deadline.
    """
    while True:
        try:
            return await work()
        except (Overloaded, Unavailable) as error:
            log.warning("waiting to encode for SGLang", extra={"code": error.code, "why": error.message})
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(error.retry_after or AGAIN_SECONDS, AGAIN_SECONDS)):
                    await gate.until_changed()


def _owner(entered: Entered) -> str:
    """Whose parts these are. Without keys everybody is trusted: the ranks of one server call from several hosts."""
    return entered.visit.caller if entered.server.keys else ""


def _address_of(request: Request) -> str:
    return request.client.host if request.client else ""
