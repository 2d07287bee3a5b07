"""One small question of the gateway's own to an LLM server: a whole answer within seconds, or an error."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import httpcore

from foveal.handover.upstreams import Upstream, Upstreams

SECONDS = 5.0
MAX_BYTES = 1 << 20
Header = tuple[bytes, bytes]


class Silent(Exception):
    """The server was connected to and did not answer whole, or at too great a length."""


async def ask(
    upstreams: Upstreams, upstream: Upstream, path: bytes, headers: Sequence[Header] = (), body: bytes | None = None
) -> tuple[int, bytes]:
    """Status and body of a GET, or of a POST of JSON. Raises Silent, or OSError where nothing connects."""
    sent: list[Header] = [(b"Host", upstream.host_header), (b"User-Agent", b"foveal"), (b"Connection", b"close")]
    sent += headers
    if body is not None:
        sent += [(b"Content-Type", b"application/json"), (b"Content-Length", b"%d" % len(body))]
    origin = upstream.origin
    url = httpcore.URL(scheme=origin.scheme, host=origin.host, port=origin.port, target=upstream.path + path)
    method = "GET" if body is None else "POST"
    try:
        async with asyncio.timeout(SECONDS):
            return await _answer(upstreams, httpcore.Request(method, url, headers=sent, content=body))
    except TimeoutError:
        raise Silent(f"no whole answer within {SECONDS:g} s") from None
    except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
        raise OSError(f"{type(error).__name__}: {error}") from None
    except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException) as error:
        raise Silent(f"{type(error).__name__}: {error}") from None


async def _answer(upstreams: Upstreams, request: httpcore.Request) -> tuple[int, bytes]:
    timeouts = {"connect": SECONDS, "read": SECONDS, "write": SECONDS}
    request.extensions = {"timeout": timeouts}
    async with httpcore.AsyncConnectionPool(ssl_context=upstreams.tls, max_keepalive_connections=0) as pool:
        response = await pool.handle_async_request(request)
        try:
            found = bytearray()
            async for chunk in response.aiter_stream():
                found += chunk
                if len(found) > MAX_BYTES:
                    raise Silent(f"more than {MAX_BYTES} bytes")
            return response.status, bytes(found)
        finally:
            await response.aclose()
