"""`Fetcher`: one URL to its bytes. Each hop is a new connection that ends with it, so nothing passes between callers.

It sends no cookies, no credentials and no referrer, asks no proxy, and believes no header but the lengths that it
checks. The bytes decide later whether they are an image.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from dataclasses import dataclass

import httpcore
import httpx

from foveal import __version__
from foveal.errors import UrlFailed
from foveal.fetch.body import Allowance, read_body
from foveal.fetch.resolver import Resolve, Resolver
from foveal.fetch.rules import MAX_URL_LENGTH, Rules, host_of
from foveal.fetch.seats import Seats
from foveal.fetch.wire import Wire
from foveal.settings import Settings
from foveal_client._http import unusable_certificates

log = logging.getLogger(__name__)

MAX_FETCHES = 128
"""At a time, of all requests."""
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Statuses that another try may not meet again."""
_HEADERS = (
    (b"Accept", b"*/*"),
    (b"Accept-Encoding", b"identity"),
    (b"User-Agent", f"foveal/{__version__}".encode()),
    (b"Connection", b"close"),
)


@dataclass(frozen=True)
class Limits:
    """Bounds of one fetch, and of the fetches from one host."""

    seconds: float
    max_redirects: int
    max_per_host: int


class Fetcher:
    """Fetches what the rules allow, within limits."""

    def __init__(
        self,
        rules: Rules,
        limits: Limits,
        resolve: Resolve | None = None,
        network: httpcore.AsyncNetworkBackend | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.rules, self._limits = rules, limits
        self._resolve = resolve or Resolver()
        self._network = network or httpcore.AnyIOBackend()
        self._seats = Seats(limits.max_per_host, MAX_FETCHES)
        self._tls = tls or httpcore.default_ssl_context()

    async def fetch(self, url: httpx.URL, allowance: Allowance) -> bytes:
        """The bytes behind a URL; raises UrlForbidden, UrlFailed, TooLarge, Overloaded, Undecodable.

        The time limit spans all hops, but not the wait for a seat: the request's deadline bounds that.
        """
        clock = asyncio.get_running_loop().time
        left = self._limits.seconds
        for _ in range(self._limits.max_redirects + 1):
            self.rules.check(url)
            async with self._seats.seat(host_of(url)):
                began = clock()
                found = await self._hop_within(left, url, allowance)
                left -= clock() - began
            if isinstance(found, bytes):
                return found
            url = found
        raise UrlFailed(f"the URL redirects more than {self._limits.max_redirects} times", retryable=False)

    async def _hop_within(self, seconds: float, url: httpx.URL, allowance: Allowance) -> bytes | httpx.URL:
        try:
            async with asyncio.timeout(seconds):
                return await self._hop(url, allowance)
        except TimeoutError:
            limit = f"{self._limits.seconds:g} s (--url-timeout-seconds)"
            raise UrlFailed(f"the URL was not fetched within {limit}; try again or send the image itself") from None
        except (httpcore.TimeoutException, httpcore.NetworkError, httpcore.ProtocolError, OSError) as error:
            raise _failure(error) from None

    async def _hop(self, url: httpx.URL, allowance: Allowance) -> bytes | httpx.URL:
        """One exchange: the body, or where it redirects to."""
        target = httpcore.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path)
        wire = Wire(self.rules, self._resolve, self._network)
        connection = httpcore.AsyncHTTPConnection(target.origin, self._tls, network_backend=wire)
        try:
            async with connection.stream("GET", target, headers=[(b"Host", url.netloc), *_HEADERS]) as response:
                wire.head_is_read()
                if response.status in _REDIRECTS:
                    return _redirected(url, response)
                if response.status != 200:
                    passing = response.status in _PASSING
                    raise UrlFailed(f"the URL was answered with status {response.status}", retryable=passing)
                return await read_body(response, allowance)
        finally:
            await wire.aclose()


def make_fetcher(settings: Settings) -> Fetcher | None:
    """What fetches URLs, if they are allowed; raises ConfigurationError."""
    rules = Rules(settings.url_allow_host)
    if not settings.allow_urls:
        return None
    if why := unusable_certificates():
        log.warning("certificates behind URLs are checked without the environment's", extra={"why": why})
    limits = Limits(settings.url_timeout_seconds, settings.url_max_redirects, settings.url_max_per_host)
    return Fetcher(rules, limits)


def _redirected(url: httpx.URL, response: httpcore.Response) -> httpx.URL:
    location = next((value for name, value in response.headers if name.lower() == b"location"), b"")
    if not location or len(location) > MAX_URL_LENGTH:
        raise UrlFailed("the URL redirects without saying where to", retryable=False)
    try:
        return url.join(location.decode("utf-8", "replace"))
    except httpx.InvalidURL:
        raise UrlFailed("the URL redirects to a malformed one", retryable=False) from None


def _failure(error: Exception) -> UrlFailed:
    """What a caller is told of an error of the network or the protocol."""
    if isinstance(error, ssl.SSLError) or isinstance(error.__cause__, ssl.SSLError):
        return UrlFailed("TLS with the URL's host failed; check its certificate", retryable=False)
    if isinstance(error, httpcore.ConnectError | httpcore.ConnectTimeout):
        return UrlFailed("the URL's host cannot be connected to; try again or send the image itself")
    if isinstance(error, httpcore.ProtocolError):
        return UrlFailed("the URL's answer is cut off or no HTTP; try again or send the image itself")
    return UrlFailed("the connection to the URL's host broke; try again or send the image itself")
