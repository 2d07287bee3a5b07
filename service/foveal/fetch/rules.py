"""`Rules`: which URLs may be fetched, by scheme, host and port, and which addresses their hosts may have.

Without a list every public host may be asked. With `--url-allow-host`, only those that it names; a host that it
names in full may also have an address inside the organisation's own network, since nobody but the operator named it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import httpx

from foveal.errors import ConfigurationError, InvalidRequest, UrlForbidden
from foveal.fetch.addresses import Address, is_internal, is_public, literal

MAX_URL_LENGTH = 8192
_PORTS = {"http": 80, "https": 443}
_FIRST_FREE_PORT, _LAST_PORT = 1024, 65535
_NAME = re.compile(r"(?=.{1,253}\Z)[a-z0-9_-]{1,63}(\.[a-z0-9_-]{1,63})*")


@dataclass(frozen=True)
class AllowedHost:
    """One entry of --url-allow-host: HOST, HOST:PORT, *.DOMAIN or * for every public host."""

    name: str
    port: int | None = None
    is_wildcard: bool = False

    @classmethod
    def parse(cls, text: str) -> AllowedHost:
        """Read an entry; raises ConfigurationError."""
        if text == "*":
            return cls("", is_wildcard=True)
        if (address := literal(text)) is not None:
            return cls(str(address))
        rest = text.removeprefix("*.")
        try:
            url = httpx.URL(f"http://{rest}")
            host, is_bare = host_of(url), not url.userinfo and url.raw_path == b"/" and not url.fragment
        except (httpx.InvalidURL, UrlForbidden):
            is_bare = False
        if not is_bare or rest.endswith("/") or url.port not in (None, *range(1, _LAST_PORT + 1)):
            raise ConfigurationError(f"--url-allow-host {text!r}: give HOST, HOST:PORT, *.DOMAIN or *")
        return cls(host, url.port, is_wildcard=rest != text)

    def covers(self, host: str, port: int) -> bool:
        """True if the entry speaks of this host and port."""
        if self.port not in (None, port):
            return False
        if self.is_wildcard:
            return not self.name or host.endswith("." + self.name)
        return host == self.name


@dataclass(frozen=True)
class Reach:
    """Which addresses one host may have."""

    host: str
    is_named: bool

    def includes(self, address: Address) -> bool:
        """True if this address of the host may be connected to."""
        if is_public(address):
            return True
        if not self.is_named:
            return False
        is_itself = address == literal(self.host) or (self.host == "localhost" and address.is_loopback)
        return is_itself or is_internal(address)


class Rules:
    """Decides before anything connects; raises ConfigurationError for an entry that names no host."""

    def __init__(self, allowed: Sequence[str] = ()) -> None:
        self._allowed = tuple(AllowedHost.parse(text) for text in allowed)

    def url_of(self, text: str) -> httpx.URL:
        """The URL, if it may be fetched; raises UrlForbidden, or InvalidRequest for one that is none."""
        scheme = text[:32].partition(":")[0]
        if scheme.lower() not in _PORTS:
            raise UrlForbidden(f"URLs of the scheme {scheme!r} are not fetched; send http, https or the image itself")
        if len(text) > MAX_URL_LENGTH:
            raise InvalidRequest(f"a URL may have {MAX_URL_LENGTH} characters")
        try:
            url = httpx.URL(text)
        except httpx.InvalidURL:
            raise InvalidRequest("the URL is malformed; send http://host/path or https://host/path") from None
        self.check(url)
        return url

    def check(self, url: httpx.URL) -> None:
        """Refuse by scheme, host and port; raises UrlForbidden."""
        if url.scheme not in _PORTS:
            raise UrlForbidden(f"the URL leads to the scheme {url.scheme[:32]!r}; only http and https are fetched")
        if url.userinfo:
            raise UrlForbidden("URLs with a user name or password are not fetched; send a signed URL or the image")
        host = host_of(url)
        reach = self.reach(host, port_of(url))
        if (address := literal(host)) is not None and not reach.includes(address):
            raise forbidden_address()

    def reach(self, host: str, port: int) -> Reach:
        """Which addresses this host may have; raises UrlForbidden where it may not be asked at all."""
        entries = [entry for entry in self._allowed if entry.covers(host, port)]
        if self._allowed and not entries:
            raise UrlForbidden(f"{host}:{port} is not among the hosts of --url-allow-host; send the image itself")
        is_port_named = any(entry.port == port for entry in entries)
        if not is_port_named and port not in _PORTS.values() and not _FIRST_FREE_PORT <= port <= _LAST_PORT:
            raise UrlForbidden(f"port {port} is not fetched from; only 80, 443 and {_FIRST_FREE_PORT} to {_LAST_PORT}")
        return Reach(host, is_named=any(not entry.is_wildcard for entry in entries))


def forbidden_address() -> UrlForbidden:
    """The refusal of an address; it does not tell which, nor what is there."""
    return UrlForbidden("the URL's host has no address that may be fetched from; send the image itself")


def host_of(url: httpx.URL) -> str:
    """The host of a URL in one spelling; raises UrlForbidden where there is none."""
    return canonical(url.raw_host.decode("ascii"))


def canonical(host: str) -> str:
    """A host in one spelling: lower case, no final dot, shortest IPv6; raises UrlForbidden for what is none."""
    if (address := literal(host)) is not None:
        return str(address)
    name = host.lower().removesuffix(".")
    if not _NAME.fullmatch(name):
        raise UrlForbidden("the URL names no host that could be asked; send http://host/path or https://host/path")
    return name


def port_of(url: httpx.URL) -> int:
    """The port that a connection goes to."""
    return url.port if url.port is not None else _PORTS[url.scheme]
