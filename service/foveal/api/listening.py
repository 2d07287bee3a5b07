"""The sockets of a server: one for each address that its host has, all at one port; and the URL that it prints."""

from __future__ import annotations

import errno
import logging
import socket
from collections.abc import Sequence

from foveal.errors import ConfigurationError

log = logging.getLogger(__name__)

BACKLOG = 4096
FREE_PORTS_TRIED = 20
"""A free port of one address may be taken at another."""
ALL_IPV6, ALL_IPV4 = "::", "0.0.0.0"
_NOT_HERE = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL, errno.EPROTONOSUPPORT)
"""The machine lacks the family, or it is turned off."""

Address = tuple[socket.AddressFamily, str, int]
"""Family, address, and the interface that a link-local address belongs to."""


def listen(host: str, port: int) -> list[socket.socket]:
    """Sockets that listen on all addresses of `host`; `::` is every address of both families.

    Two sockets instead of one for both: callers by IPv4 keep their own address, by which they are told apart.
    Raises ConfigurationError.
    """
    try:
        addresses = _addresses(host)
        tries = 1 if port else FREE_PORTS_TRIED
        while True:
            tries -= 1
            try:
                return _bound(addresses, port, host)
            except OSError as error:
                if error.errno != errno.EADDRINUSE or not tries:
                    raise
    except OSError as error:
        raise ConfigurationError(f"--host {host} --port {port}: {_why(error, host)}") from None


def url_of(host: str, port: int) -> str:
    """A URL by which `host` is reached."""
    return f"http://[{host.replace('%', '%25')}]:{port}" if ":" in host else f"http://{host}:{port}"


def _addresses(host: str) -> list[Address]:
    if host == ALL_IPV6:
        return [(socket.AF_INET6, ALL_IPV6, 0), (socket.AF_INET, ALL_IPV4, 0)]
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    scoped = [(family, str(address[0]), int(address[3]) if len(address) == 4 else 0) for family, *_, address in found]
    return list(dict.fromkeys(scoped))


def _bound(addresses: Sequence[Address], port: int, host: str) -> list[socket.socket]:
    """One socket for each address, the first of which chooses the port; those of a family that is off are left out."""
    sockets: list[socket.socket] = []
    try:
        for family, address, scope in addresses:
            target = (address, port, 0, scope) if family == socket.AF_INET6 else (address, port)
            try:
                sockets.append(socket.create_server(target, family=family, backlog=BACKLOG))
            except OSError as error:
                is_last_hope = not sockets and address == addresses[-1][1]
                if error.errno not in _NOT_HERE or is_last_hope or address == ALL_IPV6:
                    raise
                log.warning("not listening on %s, an address of %s: %s", address, host, error.strerror)
            else:
                port = int(sockets[-1].getsockname()[1])
    except BaseException:
        for sock in sockets:
            sock.close()
        raise
    return sockets


def _why(error: OSError, host: str) -> str:
    if isinstance(error, socket.gaierror):
        return f"no address is known for {host!r} ({error.strerror}); give an address of this machine, or a name of it"
    if error.errno in _NOT_HERE and ":" in host:
        return f"this machine has no such IPv6 address, or IPv6 is off ({_words(error)}); 0.0.0.0 is all of IPv4"
    return f"{_words(error)}; choose another"


def _words(error: OSError) -> str:
    """Without what Python's create_server puts behind it: the address is told already."""
    return (error.strerror or str(error)).partition(" (while attempting")[0]
