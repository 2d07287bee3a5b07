"""What every route may use of the server it belongs to, and what one request carries from end to end."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import HTTPConnection
from starlette.types import Scope

from foveal.engine.assembly import Service
from foveal.metrics import Metrics
from foveal.settings import Settings

_CONTEXT = "foveal.context"
_MAX_ID_LENGTH = 128


@dataclass
class Server:
    """One server's parts. `service` is None until the model is known; `waits_for` says what for."""

    settings: Settings
    metrics: Metrics
    keys: tuple[str, ...] = ()
    service: Service | None = None
    waits_for: str = "starting"
    is_draining: bool = False


@dataclass
class RequestContext:
    """One request's id and times; middleware makes it, routes add to it, the log line shows it."""

    request_id: str
    arrival: float = field(default_factory=time.monotonic)
    code: str = "ok"
    body_is_read: bool = False
    facts: dict[str, Any] = field(default_factory=dict)


def open_context(scope: Scope) -> RequestContext:
    """Start a request: its own id if it is a sane one, else a new one."""
    sent = HTTPConnection(scope).headers.get("x-request-id", "")
    is_sane = 0 < len(sent) <= _MAX_ID_LENGTH and sent.isascii() and sent.isprintable()
    context = RequestContext(sent if is_sane else uuid.uuid4().hex)
    scope[_CONTEXT] = context
    return context


def context_of(connection: HTTPConnection) -> RequestContext:
    """The context of a request."""
    found = connection.scope[_CONTEXT]
    assert isinstance(found, RequestContext)
    return found


def server_of(connection: HTTPConnection) -> Server:
    """The server that a request came to."""
    found = connection.app.state.server
    assert isinstance(found, Server)
    return found
