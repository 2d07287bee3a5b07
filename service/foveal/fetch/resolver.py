"""`Resolver`: names to addresses, by the system's own rules.

Each lookup has a thread of its own, since a name server that does not answer holds it for many seconds: the loop's
few shared threads would soon all wait for hostile names. The threads do not keep the process from ending.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Awaitable, Callable
from ipaddress import ip_address

from foveal.errors import UrlFailed
from foveal.fetch.addresses import Address

MAX_LOOKUPS = 64
_FOR_NOW = frozenset({socket.EAI_AGAIN, socket.EAI_MEMORY, socket.EAI_SYSTEM})

Resolve = Callable[[str], Awaitable[list[Address]]]


def _system_lookup(host: str) -> list[Address]:
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return [ip_address(address[0]) for *_, address in found]


class Resolver:
    """Looks names up, a bounded number at a time."""

    def __init__(self, lookup: Callable[[str], list[Address]] = _system_lookup) -> None:
        self._lookup = lookup
        self._seats = asyncio.Semaphore(MAX_LOOKUPS)

    async def __call__(self, host: str) -> list[Address]:
        """All addresses of a name, best first; raises UrlFailed."""
        await self._seats.acquire()
        answer: asyncio.Future[list[Address]] = asyncio.get_running_loop().create_future()
        thread = threading.Thread(target=self._work, args=(host, answer), name="resolve", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the system gives no more threads
            self._seats.release()
            raise UrlFailed("the URL's host could not be looked up; try again") from None
        try:
            return await answer
        except socket.gaierror as error:
            may_pass = error.errno in _FOR_NOW
            raise UrlFailed("the URL's host cannot be resolved; check its name", retryable=may_pass) from None
        except (OSError, ValueError):
            raise UrlFailed("the URL's host cannot be resolved; check its name", retryable=False) from None

    def _work(self, host: str, answer: asyncio.Future[list[Address]]) -> None:
        found: list[Address] | Exception
        try:
            found = self._lookup(host)
        except Exception as error:
            found = error
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
            answer.get_loop().call_soon_threadsafe(self._settle, answer, found)

    def _settle(self, answer: asyncio.Future[list[Address]], found: list[Address] | Exception) -> None:
        # only now: a caller who left does not end the thread
        self._seats.release()
        if answer.done():
            return
        if isinstance(found, Exception):
            answer.set_exception(found)
        else:
            answer.set_result(found)
