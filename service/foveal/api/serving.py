"""What all routes that encode do around their own work: key, quota, deadline, admission, disconnect, times."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive

from foveal.api.body import read_body
from foveal.api.context import Server, context_of, server_of
from foveal.api.keys import require_key
from foveal.engine.admission import Visit
from foveal.engine.items import Encoded
from foveal.errors import DeadlineExceeded, InvalidRequest, Unavailable
from foveal.fetch.body import Allowance
from foveal.fetch.images import Source, fetch_images
from foveal.handover.service import HandoverService
from foveal.metrics import exemplar

MAX_TIMEOUT_DIGITS = 12
Result = TypeVar("Result")


@dataclass(frozen=True)
class Entered:
    """A request that was let in. `deadline` is in the loop's time."""

    server: Server
    service: HandoverService
    visit: Visit
    deadline: float


def enter(
    request: Request, stack: contextlib.ExitStack | contextlib.AsyncExitStack, of_sglang: bool = False
) -> Entered:
    """Let a request in, until `stack` is closed; raises Unauthorized, RateLimited, InvalidRequest, Unavailable,
    Draining. One `of_sglang` may name its key as a password, and comes in while the server drains.
    """
    server = server_of(request)
    caller = require_key(request, server.keys, as_password=of_sglang)
    server.quotas.enter(caller)
    deadline = _deadline(request, server)
    if server.service is None:
        raise Unavailable(f"the server is starting ({server.waits_for}); try again", retry_after=2.0)
    charge = partial(server.quotas.charge, caller)
    visit = stack.enter_context(server.service.engine.gate.visit(caller, deadline, charge, while_draining=of_sglang))
    context_of(request).images = visit.stages
    return Entered(server, server.service, visit, deadline)


def enter_to_fetch(request: Request, stack: contextlib.ExitStack) -> Entered:
    """As `enter`, for one who only fetches what was promised: without quota, and also while the server drains."""
    server = server_of(request)
    caller = require_key(request, server.keys)
    deadline = _deadline(request, server)
    if server.service is None:
        raise Unavailable(f"the server is starting ({server.waits_for}); try again", retry_after=2.0)
    visit = stack.enter_context(server.service.engine.gate.visit(caller, deadline, while_draining=True))
    return Entered(server, server.service, visit, deadline)


def _deadline(request: Request, server: Server) -> float:
    """The moment, in the loop's time, after which this request is not answered any more."""
    seconds = server.settings.request_timeout_seconds
    if (text := request.headers.get("x-request-timeout-ms")) is not None:
        if not (text.isascii() and text.isdigit() and len(text) <= MAX_TIMEOUT_DIGITS and int(text) > 0):
            raise InvalidRequest("X-Request-Timeout-Ms must be a whole number of milliseconds above 0")
        seconds = min(seconds, int(text) / 1000)
    waited = time.monotonic() - context_of(request).arrival
    return asyncio.get_running_loop().time() + seconds - waited


async def pictures_of(request: Request, server: Server, service: HandoverService, visit: Visit) -> bytes:
    """The body of a request that asks for nothing but pictures; raises Overloaded, where that is known, unread."""
    service.engine.refuse_unread(visit)
    return await body_of(request, server, visit)


async def body_of(request: Request, server: Server, visit: Visit) -> bytes:
    """The request's body; raises what `read_body` raises."""
    context = context_of(request)
    context.stages.current = "fetch"
    try:
        body = await read_body(request, visit, server.settings.max_body_bytes)
    finally:
        context.stages.record("fetch", time.monotonic() - context.arrival)
    context.body_is_read = True
    context.stages.current = "parse"
    return body


async def fetched(request: Request, sources: Sequence[Source], param: str, visit: Visit) -> list[bytes]:
    """The bytes of all images. The `fetch` stage is the time of the body and of what it names by URL."""
    server, context, began = server_of(request), context_of(request), time.monotonic()
    stages = context.stages
    stages.current = "fetch"
    try:
        allowance = Allowance(server.settings.max_body_bytes, visit.hold_body)
        images = await fetch_images(sources, param, server.fetcher, allowance)
    finally:
        if not all(isinstance(source, bytes) for source in sources):
            stages.record("fetch", time.monotonic() - began)
        seconds = stages.seconds()["fetch"]
        server.metrics.stages["fetch"].observe(seconds, exemplar(context.request_id))
    stages.current = "images"
    return images


async def within(deadline: float, request: Request, work: Awaitable[Result]) -> Result:
    """The result of `work`; raises DeadlineExceeded."""
    try:
        async with asyncio.timeout_at(deadline):
            return await work
    except TimeoutError:
        spent = time.monotonic() - context_of(request).arrival
        raise DeadlineExceeded(
            f"the request was not done after {spent * 1000:.0f} ms, its deadline; allow more time or send less"
        ) from None


async def unless_gone(receive: Receive, work: Awaitable[Result]) -> Result:
    """The result of `work`, cancelled when the caller hangs up; raises ClientDisconnect then."""
    task = asyncio.current_task()
    assert task is not None, "a request is not served by a task: this is a bug"
    watcher = asyncio.create_task(_cancel_when_gone(receive, task))
    try:
        return await work
    except asyncio.CancelledError:
        if watcher.done() and not watcher.cancelled() and not task.uncancel():
            raise ClientDisconnect from None
        raise
    finally:
        watcher.cancel()


async def _cancel_when_gone(receive: Receive, task: asyncio.Task[Any]) -> None:
    await until_gone(receive)
    task.cancel()


async def until_gone(receive: Receive) -> None:
    """Wait until the caller hangs up; its body must have been read."""
    while (await receive())["type"] != "http.disconnect":
        pass


def timing(request: Request, server: Server, encoded: Sequence[Encoded]) -> str:
    """The Server-Timing header; each stage is that of the image that spent most in it. Also counts and logs them."""
    context = context_of(request)
    stages, label = {"fetch": context.stages.seconds()["fetch"]}, exemplar(context.request_id)
    for name in ("probe", "prep", "queue", "copy_in", "encode", "copy_out"):
        values = [e.seconds.get(name, 0.0) for e in encoded]
        stages[name] = max(values)
        for value in values:
            if value > 0:
                server.metrics.stages[name].observe(value, label)
    stages["total"] = time.monotonic() - context.arrival
    context.facts |= {name: round(seconds, 6) for name, seconds in stages.items()}
    context.facts |= {"images": len(encoded), "tokens": sum(e.num_tokens for e in encoded)}
    context.facts["cached"] = sum(e.cached for e in encoded)
    return ", ".join(f"{name};dur={seconds * 1000:.3f}" for name, seconds in stages.items())
