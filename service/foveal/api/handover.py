"""`GET` and `HEAD /embeddings/{key}`: what was promised, in the encoder cache, or on its way there, as one file."""

from __future__ import annotations

import contextlib
import time
from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from foveal.api.context import context_of
from foveal.api.encode import EmbeddingsResponse
from foveal.api.serving import Entered, enter_to_fetch, unless_gone, within
from foveal.engine.items import Encoded
from foveal.errors import InvalidRequest, NotFound
from foveal.handover.ec_file import ec_file
from foveal.handover.folder import NAME
from foveal.handover.promises import Promise
from foveal.handover.safetensors import MEDIA_TYPE


async def fetch(request: Request) -> Response:
    """The file, sent from shared memory. What is still being encoded is waited for, within the deadline.

    When all of it is sent, its promise has been kept and ends.
    """
    with contextlib.ExitStack() as stack:
        entered, key = _enter(request, stack)
        with entered.server.open_request():
            work = unless_gone(request.receive, _find(entered, key))
            encoded, promise = await within(entered.deadline, request, work)
        handover = entered.service.handover
        entered.visit.hold_answer(encoded.embedding)
        buffers = ec_file(entered.service.engine.spec, encoded, key)
        timing = f"total;dur={(time.monotonic() - context_of(request).arrival) * 1000:.3f}"
        on_sent = partial(handover.fetched, promise) if promise else lambda: None
        return EmbeddingsResponse(entered.server, stack, entered.deadline, MEDIA_TYPE, buffers, timing, on_sent)


async def peek(request: Request) -> Response:
    """Whether `GET` would answer at once, and with how many bytes. Waits for nothing, and ends no promise."""
    with contextlib.ExitStack() as stack:
        entered, key = _enter(request, stack)
        promise = entered.service.handover.promises.get(key)
        encoded = promise.encoded if promise else entered.service.engine.cache.peek(key)
        if encoded is None:
            raise _not_found(entered)
        num_bytes = sum(len(buffer) for buffer in ec_file(entered.service.engine.spec, encoded, key))
        return Response(headers={"content-type": MEDIA_TYPE, "content-length": str(num_bytes)})


def _enter(request: Request, stack: contextlib.ExitStack) -> tuple[Entered, str]:
    context_of(request).body_is_read = True  # there is none
    entered = enter_to_fetch(request, stack)
    key = request.path_params["key"]
    if not NAME.fullmatch(key):
        raise InvalidRequest("a key is 64 lower-case hex digits, as `key` of an answer says it", param="key")
    return entered, key


async def _find(entered: Entered, key: str) -> tuple[Encoded, Promise | None]:
    service = entered.service
    if (promise := service.handover.promises.get(key)) is not None:
        return promise.encoded, promise
    if (found := await service.engine.find(key, entered.visit)) is not None:
        return found, service.handover.promises.get(key)  # made while it was waited for
    entered.server.metrics.handover.labels("missed").inc()
    raise _not_found(entered)


def _not_found(entered: Entered) -> NotFound:
    seconds = entered.server.settings.handover_seconds
    return NotFound(
        f"no embedding is kept under this key: it was never held here, was fetched already, or its {seconds:g} s "
        "(--handover-seconds) are over; send the image to /encode?deliver=hold again",
        param="key",
    )
