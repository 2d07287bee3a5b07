"""What a client knows of its servers, the same for both clients: address, key, patience. Sends nothing itself."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import httpx

from foveal_client import _defaults
from foveal_client._errors import APIStatusError, ConnectionFailed, DeadlineExceeded, FovealError
from foveal_client._http import Network
from foveal_client._requests import Call, timeout_header
from foveal_client._retry import Clock, Tries
from foveal_client._servers import Servers, urls_of

READY = Call("GET", "/ready")


@dataclass(frozen=True)
class Session:
    """Equal servers, mostly one, and how patient to be with them."""

    servers: Servers
    headers: dict[str, str] = field(repr=False)
    """Sent with every request. May hold the key, so it is never printed."""
    timeout_seconds: float
    max_retries: int
    clock: Clock

    @classmethod
    def of(
        cls,
        base_url: str | Sequence[str] | None,
        api_key: str | None,
        timeout: float,
        max_retries: int,
        clock: Clock | None,
    ) -> Session:
        """Fill gaps from the environment, then from the defaults. Raises ValueError for what cannot work."""
        environment_url, environment_key = _defaults.from_environment()
        given = environment_url or _defaults.URL if base_url is None or base_url == "" else base_url
        clock = clock or Clock()
        servers = Servers(urls_of(given), clock.now)
        # A key read from a file tends to end in a line break, which no header may hold.
        key = (api_key or environment_key or "").strip()
        headers = {"User-Agent": "foveal-client"} | ({"Authorization": f"Bearer {key}"} if key else {})
        return cls(servers, headers, _positive(timeout), _not_negative(max_retries), clock)

    def network(self, transport: object) -> Network:
        """The ways to the servers; nothing of the environment counts for a transport of the caller's."""
        return Network.to(self.servers.urls) if transport is None else Network()

    def tries(self, timeout: float | None = None, max_retries: int | None = None) -> Tries:
        """The patience of one call that begins now. Raises ValueError for lengths that are none."""
        seconds = self.timeout_seconds if timeout is None else _positive(timeout)
        retries = self.max_retries if max_retries is None else _not_negative(max_retries)
        return Tries(self.clock.now() + seconds, retries, self.clock, max_hops=len(self.servers.urls) - 1)

    def wait_after(self, url: str, error: FovealError, tries: Tries) -> float:
        """Seconds before the next try: none where another server can be asked; raises `error` when there is none."""
        if self.servers.failed(url, error) and tries.hop():
            return 0.0
        return tries.wait_after(error)

    def build(self, http: httpx.Client | httpx.AsyncClient, url: str, call: Call, tries: Tries) -> httpx.Request:
        """One try of a call. Raises DeadlineExceeded when there is no time for it."""
        left = tries.seconds_left()
        return http.build_request(
            call.method,
            url + call.path,
            params=call.params or None,
            headers={**self.headers, **call.headers, **timeout_header(left)},
            content=call.content,
            files=call.files,
            timeout=httpx.Timeout(left, connect=min(left, _defaults.CONNECT_SECONDS)),
        )


def not_ready_or_raise(error: FovealError) -> bool:
    """False for errors that mean "not now"; any other means that nothing can be said, and is raised."""
    if isinstance(error, (ConnectionFailed, DeadlineExceeded)):
        return False
    if isinstance(error, APIStatusError) and error.status == 503:
        return False
    raise error


def _positive(seconds: float) -> float:
    if not (seconds > 0 and math.isfinite(seconds)):
        raise ValueError(f"timeout must be a positive number of seconds, not {seconds}")
    return seconds


def _not_negative(count: int) -> int:
    if count < 0:
        raise ValueError(f"max_retries must be 0 or more, not {count}")
    return count
