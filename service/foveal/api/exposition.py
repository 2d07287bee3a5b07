"""`GET /metrics`: Prometheus text, or OpenMetrics with exemplars where that is asked for."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.openmetrics import exposition as openmetrics
from starlette.requests import Request
from starlette.responses import Response

from foveal.api.context import server_of

_writer = ThreadPoolExecutor(1, "metrics")
"""Writing takes tens of milliseconds, in which the loop would do nothing else; one thread, however many ask."""


async def metrics(request: Request) -> Response:
    """All families, in the form that Accept prefers."""
    write: Callable[[Any], bytes] = generate_latest
    content_type = CONTENT_TYPE_PLAIN_0_0_4
    if wants_openmetrics(request.headers.get("accept", "")):
        write, content_type = openmetrics.generate_latest, openmetrics.CONTENT_TYPE_LATEST
    registry = server_of(request).metrics.registry
    body = await asyncio.get_running_loop().run_in_executor(_writer, write, registry)
    return Response(body, headers={"content-type": content_type, "vary": "Accept"})


def wants_openmetrics(accept: str) -> bool:
    """True if OpenMetrics is accepted, and no less than text; of equals it is the richer one."""
    weights = {"application/openmetrics-text": 0.0, "text/plain": 0.0}
    for part in accept.lower().split(","):
        kind, *parameters = (piece.strip() for piece in part.split(";"))
        if kind in weights:
            weights[kind] = max(weights[kind], _weight(parameters))
    return 0.0 < weights["application/openmetrics-text"] >= weights["text/plain"]


def _weight(parameters: list[str]) -> float:
    """The q of a media range; 1 where there is none, and where it is not a number."""
    found = [match for text in parameters if (match := re.fullmatch(r"q\s*=\s*(0(?:\.\d{0,3})?|1(?:\.0{0,3})?)", text))]
    return float(found[0][1]) if found else 1.0
