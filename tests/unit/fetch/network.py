"""A network in memory: names, addresses, and servers that say what they are told to, whatever they are asked."""

# ruff: noqa: ASYNC109 (the client prescribes these signatures)
from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterable
from dataclasses import dataclass, field
from ipaddress import ip_address

import httpcore

from foveal.errors import UrlFailed
from foveal.fetch.addresses import Address
from foveal.fetch.body import Allowance
from foveal.fetch.fetcher import Fetcher, Limits
from foveal.fetch.rules import Rules

PUBLIC, OTHER = "93.184.216.34", "8.8.8.8"
TLS = httpcore.default_ssl_context()
HANG = b"<hang>"
"""A server that says no more and does not close."""

Script = list[bytes] | Exception


def answer(body: bytes = b"image", status: int = 200, *headers: str) -> list[bytes]:
    """A whole answer."""
    lines = [f"HTTP/1.1 {status} Whatever", *headers]
    if not any(line.lower().startswith(("content-length", "transfer-encoding")) for line in headers):
        lines.append(f"Content-Length: {len(body)}")
    head = "\r\n".join([*lines, "", ""]).encode("latin-1")
    return [head, body] if body else [head]


def redirect(location: str, status: int = 302) -> list[bytes]:
    return answer(b"", status, f"Location: {location}")


@dataclass
class Stream(httpcore.AsyncNetworkStream):
    network: Network
    script: list[bytes]
    sent: bytes = b""
    is_closed: bool = False

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        await asyncio.sleep(0)
        if not self.script:
            return b""
        piece = self.script.pop(0)
        if piece == HANG:
            self.network.hanging.set()
            await asyncio.Event().wait()
        if len(piece) > max_bytes:
            self.script.insert(0, piece[max_bytes:])
        return piece[:max_bytes]

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self.sent += buffer

    async def aclose(self) -> None:
        self.is_closed = True

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.AsyncNetworkStream:
        assert ssl_context.check_hostname and ssl_context.verify_mode is ssl.CERT_REQUIRED
        self.network.tls_names.append(server_hostname)
        if self.script[:1] == [HANG]:
            await self.read(1)
        return self

    def get_extra_info(self, info: str) -> object:
        return None


@dataclass
class Network(httpcore.AsyncNetworkBackend):
    """`servers` maps an address to what it answers on each connection in turn; the last goes on for ever."""

    servers: dict[str, list[Script]]
    connects: list[tuple[str, int]] = field(default_factory=list)
    streams: list[Stream] = field(default_factory=list)
    tls_names: list[str | None] = field(default_factory=list)
    hanging: asyncio.Event = field(default_factory=asyncio.Event)

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        self.connects.append((host, port))
        scripts = self.servers[host]
        script = scripts.pop(0) if len(scripts) > 1 else scripts[0]
        if isinstance(script, Exception):
            raise script
        self.streams.append(Stream(self, list(script)))
        return self.streams[-1]

    @property
    def num_open(self) -> int:
        return sum(not stream.is_closed for stream in self.streams)


@dataclass
class Names:
    """A name server: each lookup of a name gets the next of its answers, then the last for ever."""

    answers: dict[str, list[list[str]]]
    asked: list[str] = field(default_factory=list)

    async def __call__(self, host: str) -> list[Address]:
        self.asked.append(host)
        if host not in self.answers:
            raise UrlFailed("no such name", retryable=False)
        found = self.answers[host]
        return [ip_address(text) for text in (found.pop(0) if len(found) > 1 else found[0])]


def names(**hosts: str) -> Names:
    """One address a name; `_` stands for a dot."""
    return Names({host.replace("_", "."): [[address]] for host, address in hosts.items()})


def fetcher(network: Network, resolve: Names, *allowed: str, seconds: float = 60.0, per_host: int = 8) -> Fetcher:
    limits = Limits(seconds=seconds, max_redirects=3, max_per_host=per_host)
    return Fetcher(Rules(allowed), limits, resolve, network, TLS)


def allowance(max_bytes: int = 1 << 20) -> Allowance:
    return Allowance(max_bytes, lambda _: None)
