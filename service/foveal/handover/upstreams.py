"""`Upstreams`: which LLM server a request goes to: the one with the fewest open, of those that can be reached.

A server that cannot be reached is passed over for a while, each time twice as long; then one request tries it again.
One that serves another model gets no embeddings, and nothing else while there is a right one.
Decides only; `exchange` and `watch` do what is decided. All of it runs on the loop, so nothing needs a lock.
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from itertools import count

import httpcore

from foveal.errors import ConfigurationError, Overloaded, Unavailable
from foveal.handover.identity import Match
from foveal.metrics import Metrics
from foveal.settings import Settings
from foveal_client._http import unusable_certificates

log = logging.getLogger(__name__)

_ALL_ADDRESSES, _LOOPBACK = ("0.0.0.0", "::"), ("localhost", "127.0.0.1", "::1")
FIRST_AWAY_SECONDS, MAX_AWAY_SECONDS = 0.5, 30.0
MAX_SILENT = 2
"""Looks without an answer after which a server counts as down. It is asked all the same: it may be busy."""


@dataclass(eq=False)
class Upstream:
    """One LLM server and what is known of it."""

    name: str
    """Host, port and path: for logs, metrics and /info."""
    origin: httpcore.URL
    """Its scheme, host and port."""
    path: bytes
    """What stands before each request's own path."""
    num_open: int = 0
    num_failures: int = 0
    """In a row."""
    back_at: float = 0.0
    is_on_trial: bool = False
    """One request tries whether it is back."""
    num_silent: int = 0
    """Looks in a row that connected and got no answer."""
    is_checked: bool = False
    """What it serves is known, since it was last reached anew."""
    match: Match = field(default_factory=Match)
    """What it said that it serves."""
    refused_keys: set[bytes] = field(default_factory=set, repr=False)
    """Headers with which it shows nothing: nobody waits for that a second time."""
    refusal: str = ""
    """Why it gets no embeddings; empty: it does."""
    remark: str = ""
    """What its operator should know of it."""

    @property
    def is_up(self) -> bool:
        """It can be connected to, and answers."""
        return not self.num_failures and self.num_silent < MAX_SILENT

    @property
    def host_header(self) -> bytes:
        """Host and port as HTTP has them."""
        host = b"[%s]" % self.origin.host if b":" in self.origin.host else self.origin.host
        return host if self.origin.port is None else b"%s:%d" % (host, self.origin.port)


class Upstreams:
    """The LLM servers of one gateway, all of them alike."""

    def __init__(
        self,
        urls: Sequence[str],
        max_requests: int,
        timeout_seconds: float,
        metrics: Metrics,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.all = [_upstream(url) for url in dict.fromkeys(urls)]
        self.timeout_seconds, self._max_requests = timeout_seconds, max_requests
        self.metrics, self.now = metrics, clock
        self._turns = count()
        is_https = any(upstream.origin.scheme == b"https" for upstream in self.all)
        self.tls = httpcore.default_ssl_context() if is_https else None
        if is_https and (why := unusable_certificates()):
            log.warning("LLM servers' certificates are checked without the environment's", extra={"why": why})
        for upstream in self.all:
            metrics.gateway_upstream_up.labels(upstream.name).set(1)
            metrics.gateway_ejections.labels(upstream.name)

    def take(
        self, but: Collection[Upstream] = (), counts: bool = True, has_embeddings: bool = False
    ) -> Upstream | None:
        """A server for one request, or None when no other may have it; raises Overloaded. `give_back` must follow.

        When all others are set aside, the one that is back first is tried all the same. A request that does not count
        is never too many, and none of those open.
        """
        num_open = sum(upstream.num_open for upstream in self.all)
        if counts and num_open >= self._max_requests:
            raise Overloaded(
                f"the gateway has as many requests open as --llm-max-requests {self._max_requests} allows; try again",
                retry_after=1.0,
            )
        turn = next(self._turns) % len(self.all)
        left = [upstream for upstream in self.all[turn:] + self.all[:turn] if upstream not in but]
        right = [upstream for upstream in left if not upstream.refusal]
        left = right if has_embeddings else right or left
        if not left:
            return None
        now = self.now()
        there = [upstream for upstream in left if upstream.back_at <= now and not upstream.is_on_trial]
        least = min(there, key=lambda upstream: upstream.num_open, default=None)
        chosen = least or min(left, key=lambda upstream: upstream.back_at)
        chosen.is_on_trial = chosen.num_failures > 0
        if counts:
            chosen.num_open += 1
            self.metrics.gateway_open_requests.set(num_open + 1)
        return chosen

    def give_back(self, upstream: Upstream, counts: bool = True) -> None:
        """A request has ended there, however it did; `counts` as it was taken."""
        upstream.num_open -= counts
        upstream.is_on_trial = False
        self.metrics.gateway_open_requests.set(sum(one.num_open for one in self.all))

    def reached(self, upstream: Upstream) -> None:
        """It answers."""
        if not upstream.is_up:
            log.info("LLM server is back", extra={"upstream": upstream.name})
        upstream.num_failures, upstream.back_at, upstream.is_on_trial = 0, 0.0, False
        upstream.num_silent = 0
        self.metrics.gateway_upstream_up.labels(upstream.name).set(1)

    def unreached(self, upstream: Upstream, why: Exception) -> None:
        """It cannot be connected to, or took nothing of a request: pass it over for a while."""
        upstream.num_failures += 1
        upstream.is_checked, upstream.refusal = False, ""  # what comes back may be another
        upstream.refused_keys.clear()
        away = min(FIRST_AWAY_SECONDS * 2 ** min(upstream.num_failures - 1, 16), MAX_AWAY_SECONDS)
        upstream.back_at = self.now() + away
        self.metrics.gateway_upstream_up.labels(upstream.name).set(0)
        self.metrics.gateway_ejections.labels(upstream.name).inc()
        reason = f"{type(why).__name__}: {why}"
        log.warning("LLM server cannot be reached", extra={"upstream": upstream.name, "error": reason, "away": away})

    def silent(self, upstream: Upstream, why: str) -> None:
        """It took a question of ours and gave no answer. It may be busy: that alone sets it aside from nothing."""
        upstream.num_silent += 1
        if upstream.num_silent == MAX_SILENT:
            log.warning("LLM server does not answer", extra={"upstream": upstream.name, "error": why})
            self.metrics.gateway_upstream_up.labels(upstream.name).set(0)

    def found(self, upstream: Upstream, match: Match, refusal: str = "", remark: str = "") -> None:
        """What it serves is known, or it is known that it does not say."""
        upstream.is_checked, upstream.match = True, match
        if refusal and refusal != upstream.refusal:
            log.error("LLM server gets no embeddings: %s", refusal, extra={"upstream": upstream.name})
        elif upstream.refusal and not refusal:
            log.info("LLM server gets embeddings now", extra={"upstream": upstream.name})
        if remark and remark != upstream.remark:
            log.warning("LLM server: %s", remark, extra={"upstream": upstream.name})
        upstream.refusal, upstream.remark = refusal, remark

    def advise(self, upstream: Upstream, advice: str) -> None:
        """Its answer to embeddings showed that something is wrong with it."""
        upstream.is_checked = False
        if advice != upstream.remark:
            log.warning("LLM server: %s", advice, extra={"upstream": upstream.name})
        upstream.remark = advice

    def refuse_unless_usable(self) -> None:
        """Raise Unavailable where no LLM server may get embeddings: before anything is encoded for it."""
        if all(upstream.refusal for upstream in self.all):
            raise unusable(self.all)

    def shown(self) -> list[dict[str, object]]:
        """For /info."""
        return [
            {
                "url": one.name,
                "up": one.is_up,
                "open_requests": one.num_open,
                "models": sorted(one.match.names | one.match.others),
                "takes_embeddings": not one.refusal,
                "problem": one.refusal or one.remark or None,
            }
            for one in self.all
        ]


def unusable(upstreams: Sequence[Upstream]) -> Unavailable:
    """What callers with pictures are told where every server is refused. Another try finds the same."""
    reasons = "; ".join(dict.fromkeys(upstream.refusal for upstream in upstreams if upstream.refusal))
    error = Unavailable(f"no LLM server may be given what is encoded here: {reasons}")
    error.retryable = False
    return error


def make_upstreams(settings: Settings, metrics: Metrics) -> Upstreams | None:
    """What the gateway asks, if there is one; raises ConfigurationError."""
    if not settings.llm_url:
        if settings.llm_api_key or settings.llm_handover != "parts" or settings.llm_model:
            raise ConfigurationError(
                "--llm-api-key, --llm-handover and --llm-model say how LLM servers are asked, and there are none: set "
                "--llm-url, or leave them out"
            )
        return None
    for url in settings.llm_url:
        if _is_same_server(httpcore.URL(url), settings.host.lower(), settings.port):
            raise ConfigurationError(
                f"--llm-url {url.rpartition('@')[2]}: this server itself would listen there, and its requests go round "
                "in circles; give the LLM server's address, or listen on another --port"
            )
    if settings.llm_handover == "keys" and not (settings.handover_bytes or settings.ec_shared_storage):
        raise ConfigurationError(
            "--llm-handover keys: nothing is held that a key could name; set --handover-bytes or --ec-shared-storage"
        )
    return Upstreams(settings.llm_url, settings.llm_max_requests, settings.llm_timeout_seconds, metrics)


def _upstream(text: str) -> Upstream:
    """Clients are given the base URL with /v1, so both forms are understood."""
    base = text.removesuffix("/v1")
    url = httpcore.URL(base)
    if b"@" in base.encode():
        raise ConfigurationError("--llm-url: a user name or password is not sent; give the key as --llm-api-key")
    origin = httpcore.URL(scheme=url.scheme, host=url.host, port=url.port, target="/")
    return Upstream(base.partition("://")[2], origin, url.target.rstrip(b"/"))


def _is_same_server(url: httpcore.URL, host: str, port: int) -> bool:
    """True if a URL plainly names the server that listens on `host` and `port`. No name is looked up.

    On one of several addresses a port may be this server's, and on the next another's.
    """
    asked = url.host.decode().lower()
    if (url.port or {b"http": 80, b"https": 443}[url.scheme]) != port:
        return False
    if host in _ALL_ADDRESSES:
        return asked in (*_ALL_ADDRESSES, *_LOOPBACK, socket.gethostname().lower())
    return asked == host or (host in _LOOPBACK and asked in ("localhost", *_ALL_ADDRESSES))
