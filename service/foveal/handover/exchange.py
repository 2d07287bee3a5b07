"""`Exchange`: one request to an LLM server and its answer as it comes. The boundary to those servers.

Each exchange has a connection of its own: nothing that one request left on a connection can reach another's caller,
no stale connection fails a request, and no pool can be full.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass

import httpcore

from foveal.errors import DeadlineExceeded, InvalidRequest, Unavailable
from foveal.handover.diagnosis import ENDED, diagnose
from foveal.handover.network import Network
from foveal.handover.outgoing import Outgoing
from foveal.handover.upstreams import Upstream, Upstreams

log = logging.getLogger(__name__)

CONNECT_SECONDS = 5.0
STATUSES = range(200, 600)
"""Of an answer. HTTP knows no others, and 1xx is none: nothing here asks for another protocol."""
KEPT_BYTES = 64 << 10
"""A body up to this long is kept until the answer begins, for another server should this one break off without."""
Header = tuple[bytes, bytes]
_BROKEN = (httpcore.NetworkError, httpcore.RemoteProtocolError, httpcore.ConnectTimeout, OSError)


@dataclass(frozen=True)
class Ask:
    """What is sent. `target` is path and query; `headers` without Host, Content-Length and Connection."""

    method: str
    target: bytes
    headers: Sequence[Header]


class BrokenOff(Exception):
    """The LLM server ended its answer in the middle, or fell silent."""


class Exchange:
    """Sends on `open`; then there are `status`, `headers` and `chunks()`. `aclose` must follow, however it went."""

    status: int
    headers: Sequence[Header]

    def __init__(
        self,
        upstreams: Upstreams,
        ask: Ask,
        body: Outgoing | None,
        delivered: Callable[[], None] = lambda: None,
        counts: bool = True,
        check: Callable[[Upstream, Sequence[Header]], Awaitable[None]] | None = None,
    ) -> None:
        """`delivered` is called once: when the server has the whole request, or will not get it any more.

        One that does not count is sent however many are open, and is none of them. One with embeddings has `check`,
        which asks a server what it serves: it goes to those that serve the right model, and to no other.
        """
        self._check = check
        self._upstreams, self._ask, self._delivered, self._counts = upstreams, ask, delivered, counts
        self._body = body
        self._length = body.num_bytes if body else None
        self._is_told = False
        self._upstream: Upstream | None = None
        self._network = Network()
        self._response: httpcore.Response | None = None
        self._began = 0.0
        self._asked: list[Upstream] = []

    @property
    def upstream_name(self) -> str:
        """The server that was asked last, which is the one that answered."""
        return self._asked[-1].name if self._asked else ""

    @property
    def has_embeddings(self) -> bool:
        """It is for servers of the right model alone."""
        return self._check is not None

    def answered_with(self, said: bytes) -> None:
        """How the answer to embeddings ended, for what it tells of the server."""
        if self._check is not None and (advice := diagnose(self.status, said)):
            self._upstreams.advise(self._asked[-1], advice)

    @property
    def num_asked(self) -> int:
        """Servers that were asked."""
        return len(self._asked)

    async def open(self) -> None:
        """Send, and read the answer's head. Raises Unavailable, DeadlineExceeded, Overloaded, InvalidRequest.

        A server that cannot be reached is passed over for the next, here and for a while. One that breaks off with
        some of the request may have been ended by what it says: then one other is asked, and no more. One that
        answers before it has all of the request has answered.
        """
        broke_off = False
        while (upstream := self._upstreams.take(self._asked, self._counts, self._check is not None)) is not None:
            self._upstream = upstream
            self._asked.append(upstream)
            if self._check is not None and not await self._is_right(upstream, self._check):
                await self._leave()
                continue
            try:
                self._response = await self._answer_of(upstream)
            except _BROKEN as error:
                await self._leave()
                if not self._network.has_sent:
                    self._upstreams.unreached(upstream, error)
                    continue
                reason = f"{type(error).__name__}: {error}"
                log.warning(
                    "LLM server broke off before it answered", extra={"upstream": upstream.name, "error": reason}
                )
                upstream.is_checked = False  # it may have ended, and another may come
                if self._check is not None:
                    self._upstreams.advise(upstream, ENDED)
                is_second, broke_off = broke_off, True
                if is_second or self._body is None:
                    break
            except httpcore.LocalProtocolError as error:
                raise InvalidRequest(f"the request cannot be passed on: {error}") from None
            except httpcore.TimeoutException:
                seconds = f"{self._upstreams.timeout_seconds:g} s (--llm-timeout-seconds)"
                raise DeadlineExceeded(f"the LLM server was silent for {seconds}; try again") from None
            else:
                self._upstreams.reached(upstream)
                self._end_of_sending()
                self._body = None
                self.status, self.headers = self._response.status, self._response.headers
                return
        if broke_off:
            raise Unavailable("the LLM server broke off before it answered; try again", retry_after=1.0)
        if self._check is not None:
            self._upstreams.refuse_unless_usable()
        raise Unavailable("no LLM server can be reached (--llm-url); try again", retry_after=1.0)

    async def _is_right(
        self, upstream: Upstream, check: Callable[[Upstream, Sequence[Header]], Awaitable[None]]
    ) -> bool:
        """Embeddings may go there: it has been asked since it was last reached anew, and serves their model."""
        await check(upstream, self._ask.headers)
        return upstream.num_failures == 0 and not upstream.refusal

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """The answer's body as it comes; raises BrokenOff."""
        assert self._response is not None, "an answer was read before there was one: this is a bug"
        is_first = True
        try:
            async for chunk in self._response.aiter_stream():
                if is_first:
                    self._upstreams.metrics.gateway_seconds.observe(time.monotonic() - self._began)
                    is_first = False
                yield chunk
        except httpcore.TimeoutException:
            raise BrokenOff(f"silent for {self._upstreams.timeout_seconds:g} s") from None
        except _BROKEN as error:
            raise BrokenOff(f"{type(error).__name__}: {error}") from None

    async def aclose(self) -> None:
        """Close the connection at once, also in the middle of an answer."""
        self._end_of_sending()
        self._body = None
        await self._leave()

    async def _answer_of(self, upstream: Upstream) -> httpcore.Response:
        """One server's answer, its body unread; raises httpcore's errors."""
        self._network, self._began = Network(), time.monotonic()
        connection = httpcore.AsyncHTTPConnection(
            upstream.origin.origin, self._upstreams.tls, network_backend=self._network
        )
        headers: list[Header] = [(b"Host", upstream.host_header), *self._ask.headers, (b"Connection", b"close")]
        if self._length is not None:
            headers.append((b"Content-Length", b"%d" % self._length))
        seconds = self._upstreams.timeout_seconds
        request = httpcore.Request(
            self._ask.method,
            httpcore.URL(
                scheme=upstream.origin.scheme,
                host=upstream.origin.host,
                port=upstream.origin.port,
                target=upstream.path + self._ask.target,
            ),
            headers=headers,
            content=self._sending(),
            extensions={"timeout": {"connect": CONNECT_SECONDS, "read": seconds, "write": seconds}},
        )
        response = await connection.handle_async_request(request)
        if response.status not in STATUSES:
            raise httpcore.RemoteProtocolError(f"status {response.status}")
        return response

    async def _sending(self) -> AsyncIterator[bytes]:
        """The body's pieces. When the last has gone to the kernel, who sent them is free of them."""
        if self._body is not None:
            for piece in self._body.pieces():
                yield piece  # type: ignore[misc]  # h11 sends any buffer
        self._end_of_sending()
        if self._length and self._length > KEPT_BYTES:
            self._body = None

    def _end_of_sending(self) -> None:
        if not self._is_told:
            self._is_told = True
            self._delivered()

    async def _leave(self) -> None:
        """Close what is open, also what was cancelled in the middle of a TLS handshake."""
        upstream, self._upstream = self._upstream, None
        if upstream is not None:
            self._upstreams.give_back(upstream, self._counts)
        response, self._response = self._response, None
        if response is not None:
            await response.aclose()
        await self._network.aclose()
