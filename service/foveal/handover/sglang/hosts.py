"""Where rows may be pushed to: a caller names host and port, and this server would connect to any.

A caller may name the address that it calls from; one on this machine, any address of this machine. All others must be
in `--sglang-allow-host`. `localhost` is the loopback address, and is looked up nowhere.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_network

from foveal.errors import ConfigurationError, InvalidRequest, UrlForbidden
from foveal.fetch.addresses import Address, Network, literal
from foveal.fetch.resolver import Resolve, Resolver
from foveal.fetch.rules import canonical

_LOCALHOST = "localhost"
_LOOPBACK = IPv4Address("127.0.0.1")
_ENDPOINT = re.compile(r"(?:\[([0-9A-Fa-f:.%]+)\]|([^\[\]:/]+)):([0-9]{1,5})")


@dataclass(frozen=True)
class Endpoint:
    """A socket that waits for rows: an address or a name, and a port."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Endpoint:
        """Read host:port or [IPv6]:port; raises InvalidRequest."""
        match = _ENDPOINT.fullmatch(text)
        if match is None or not 1 <= int(match[3]) <= 65535:
            raise InvalidRequest("receive_url is no host:port")
        return cls(match[1] or match[2], int(match[3]))


class PushRules:
    """Decides before anything connects; raises ConfigurationError for an entry that is no host."""

    def __init__(self, allowed: Sequence[str] = (), resolve: Resolve | None = None) -> None:
        self._networks: list[Network] = []
        self._names: set[str] = set()
        self._resolve = resolve or Resolver()
        for text in allowed:
            self._allow(text)

    def _allow(self, text: str) -> None:
        try:
            self._networks.append(ip_network(text))
        except ValueError:
            try:
                if text.rpartition(".")[2].isdigit():  # what is written like an address and is none, is no name either
                    raise UrlForbidden("no address")
                self._names.add(canonical(text))
            except UrlForbidden:
                raise ConfigurationError(
                    f"--sglang-allow-host {text!r}: give a host, an address or a network such as 10.2.0.0/16"
                ) from None

    def check(self, endpoint: Endpoint, caller: str) -> None:
        """May rows of this caller's go there? `caller` is its address; raises UrlForbidden."""
        address = _address(endpoint.host)
        is_allowed = literal(endpoint.host) is None and canonical(endpoint.host) in self._names
        if address is not None and not address.is_unspecified:
            is_allowed |= any(address in network for network in self._networks)
            is_allowed |= _is_near(address, _address(caller))
        if not is_allowed:
            raise UrlForbidden(
                f"embeddings are not pushed to {endpoint.host[:253]!r} for a caller at {caller or 'no address'}; name "
                "the host in --sglang-allow-host"
            )

    async def address_of(self, endpoint: Endpoint) -> Address:
        """The address to connect to, of an endpoint that was checked; raises UrlFailed."""
        return _address(endpoint.host) or (await self._resolve(canonical(endpoint.host)))[0]


def _address(host: str) -> Address | None:
    """A literal address, one that is an IPv4 one in IPv6's clothes as what it is; None for a name but `localhost`."""
    if host.lower().removesuffix(".") == _LOCALHOST:
        return _LOOPBACK
    address = literal(host)
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


def _is_near(address: Address, caller: Address | None) -> bool:
    return caller is not None and (address == caller or (_is_ours(caller) and _is_ours(address)))


def _is_ours(address: Address) -> bool:
    """True for an address of this machine: only such a one can be bound to."""
    family = socket.AF_INET6 if address.version == 6 else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((str(address), 0))
    except OSError:
        return False
    return True
