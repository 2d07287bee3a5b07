"""`Servers`: which of several equal servers a try goes to: round robin over those not down, draining or full."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count

import httpx

from foveal_client._errors import APIStatusError, ConnectionFailed, FovealError
from foveal_client._proxies import has_host

AWAY_SECONDS = 1.0
"""A server that failed is passed over for so long, or for as long as it asked to wait."""


def is_about_the_server(error: FovealError) -> bool:
    """True for errors that another server may not have: no connection, draining, full, no worker."""
    if isinstance(error, ConnectionFailed):
        return error.retryable
    return isinstance(error, APIStatusError) and error.status == 503 and error.retryable


class Servers:
    """The base URLs of equal servers. Threads may share it."""

    def __init__(self, urls: Sequence[str], now: Callable[[], float]) -> None:
        self.urls = tuple(urls)
        self._now = now
        self._turns = count()
        self._back_at: dict[str, float] = {}

    def __str__(self) -> str:
        return ", ".join(self.urls)

    def pick(self) -> str:
        """The next in turn that is not set aside; when all are, the one that is back first."""
        turn = next(self._turns) % len(self.urls)
        in_turn = self.urls[turn:] + self.urls[:turn]
        now = self._now()
        return next((url for url in in_turn if self._back(url) <= now), min(in_turn, key=self._back))

    def failed(self, url: str, error: FovealError) -> bool:
        """Set a server aside if the error says so; True if another one can be tried now instead."""
        if not is_about_the_server(error):
            return False
        asked = error.retry_after if isinstance(error, APIStatusError) else None
        now = self._now()
        self._back_at[url] = now + (AWAY_SECONDS if asked is None else asked)
        return any(self._back(other) <= now for other in self.urls)

    def _back(self, url: str) -> float:
        return self._back_at.get(url, float("-inf"))


def urls_of(given: str | Sequence[str]) -> list[str]:
    """Base URLs from one, several, or several with commas between. Raises ValueError for what is none."""
    parts = given.split(",") if isinstance(given, str) else list(given)
    urls = [part.strip().rstrip("/") for part in parts]
    for url in urls:
        if not url.lower().startswith(("http://", "https://")):
            raise ValueError(f"base_url must begin with http:// or https://, not {url!r}")
        try:
            is_whole = has_host(httpx.URL(url))
        except httpx.InvalidURL as error:
            raise ValueError(f"base_url is no URL: {error}") from None
        if not is_whole:
            raise ValueError(f"base_url names no host that there could be: {url!r}")
    if not urls:
        raise ValueError("base_url is an empty list: name a server, or leave it out")
    return list(dict.fromkeys(urls))
