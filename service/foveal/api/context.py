"""What every route may use of the server it belongs to, and what one request carries from end to end."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import HTTPConnection
from starlette.types import Scope

from foveal.api.quotas import Quotas
from foveal.api.tracing import Tracing, make_tracing
from foveal.engine.stages import Stages
from foveal.errors import Draining
from foveal.fetch.fetcher import Fetcher, make_fetcher
from foveal.fetch.rules import Rules
from foveal.handover.identity import Expected
from foveal.handover.service import HandoverService
from foveal.handover.sglang.bridge import Bridge, make_bridge
from foveal.handover.upstreams import Upstreams, make_upstreams
from foveal.handover.watch import Watch
from foveal.metrics import Metrics
from foveal.settings import Settings

_CONTEXT = "foveal.context"
_MAX_ID_LENGTH = 128


@dataclass
class Server:
    """One server's parts. `service` is None until the model is known; `waits_for` says what for.

    Made of settings alone; raises ConfigurationError where they name no host to fetch from, or traces without the
    packages for them.
    """

    settings: Settings
    metrics: Metrics
    keys: tuple[str, ...] = ()
    service: HandoverService | None = None
    waits_for: str = "starting"
    is_draining: bool = False
    fetcher: Fetcher | None = field(init=False)
    quotas: Quotas = field(init=False)
    tracing: Tracing | None = field(init=False)
    sglang: Bridge | None = field(init=False)
    upstreams: Upstreams | None = field(init=False)
    watch: Watch | None = field(init=False)
    _open: set[asyncio.Task[Any]] = field(default_factory=set)
    _has_given_up: bool = False

    def __post_init__(self) -> None:
        self.fetcher = make_fetcher(self.settings)
        self.tracing = make_tracing(self.settings.otel_endpoint)
        self.sglang = make_bridge(self.settings, self.keys)
        self.upstreams = make_upstreams(self.settings, self.metrics)
        key = self.settings.llm_api_key.get_secret_value() if self.settings.llm_api_key else None
        self.watch = Watch(self.upstreams, self._expected, key) if self.upstreams else None
        self.quotas = Quotas(self.settings.key_requests_per_minute, self.settings.key_tokens_per_minute)

    def _expected(self) -> Expected | None:
        """The model that LLM servers must serve, once it is known."""
        return Expected.of(self.settings, self.service.engine.spec) if self.service else None

    @property
    def url_rules(self) -> Rules | None:
        """Which URLs are fetched; None: none at all."""
        return self.fetcher.rules if self.fetcher else None

    @contextlib.contextmanager
    def open_request(self) -> Iterator[None]:
        """While a request is worked on; raises Draining in it once the server gives up."""
        task = asyncio.current_task()
        assert task is not None, "a request is not served by a task: this is a bug"
        self._open.add(task)
        try:
            yield
        except asyncio.CancelledError:
            if not self._has_given_up:
                raise
            task.uncancel()
            raise Draining("the server stopped before this request was done; send it again") from None
        finally:
            self._open.discard(task)

    def give_up(self) -> None:
        """End what is still worked on: its callers are told."""
        self._has_given_up = True
        for task in self._open:
            task.cancel()


@dataclass
class RequestContext:
    """One request's id and times; middleware makes it, routes add to it, the log line shows it."""

    request_id: str
    arrival: float = field(default_factory=time.monotonic)
    code: str = "ok"
    param: str | None = None
    """What of the request was refused."""
    body_is_read: bool = False
    facts: dict[str, Any] = field(default_factory=dict)
    stages: Stages = field(default_factory=lambda: Stages("door"))
    """How far the request has come: door, fetch, parse, images, serialize; in the gateway handover, llm, stream."""
    images: Mapping[int, Stages] = field(default_factory=dict)
    """How far those of its images have come that were begun and not in the cache."""


def open_context(scope: Scope) -> RequestContext:
    """Start a request: its own id if it is a sane one, else a new one."""
    sent = HTTPConnection(scope).headers.get("x-request-id", "")
    is_sane = 0 < len(sent) <= _MAX_ID_LENGTH and sent.isascii() and sent.isprintable()
    context = RequestContext(sent if is_sane else uuid.uuid4().hex, scope.get("foveal.arrival") or time.monotonic())
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
