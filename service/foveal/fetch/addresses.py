"""Which addresses callers may send this server to. The tables are ours: the standard library's differ by version."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_CREDENTIALS = tuple(
    ip_network(text)
    for text in (
        "169.254.0.0/16",  # link-local: where most clouds hand out credentials
        "100.100.100.200/32",  # Alibaba
        "168.63.129.16/32",  # Azure; public by its number
        "192.0.0.192/32",  # Oracle
        "fd00:ec2::/32",  # Amazon
        "fd20:ce::/32",  # Google
    )
)
_SPECIAL_V4 = tuple(
    ip_network(text)
    for text in (
        "0.0.0.0/8",
        "10.0.0.0/8",
        "100.64.0.0/10",
        "127.0.0.0/8",
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.88.99.0/24",
        "192.168.0.0/16",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/3",
    )
)
_UNICAST_V6 = ip_network("2000::/3")
# Teredo and 6to4 carry a v4 address inside and reach nobody today; the others are for documents and protocols
_SPECIAL_V6 = tuple(ip_network(text) for text in ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20"))
_NAT64 = ip_network("64:ff9b::/96")
_INTERNAL = tuple(
    ip_network(text) for text in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7")
)


def is_public(address: Address) -> bool:
    """True for a unicast address of the public internet."""
    if isinstance(address, IPv6Address) and address in _NAT64:
        # an IPv6-only network reaches every IPv4 host so
        address = IPv4Address(int(address) & 0xFFFFFFFF)
    if _is_in(address, _CREDENTIALS):
        return False
    if isinstance(address, IPv4Address):
        return not _is_in(address, _SPECIAL_V4)
    return address in _UNICAST_V6 and not _is_in(address, _SPECIAL_V6)


def is_internal(address: Address) -> bool:
    """True for an address of an organisation's own network; never loopback, link-local or a cloud's metadata."""
    return _is_in(address, _INTERNAL) and not _is_in(address, _CREDENTIALS)


def literal(host: str) -> Address | None:
    """The address that a host is written as, if it is no name."""
    try:
        return ip_address(host)
    except ValueError:
        return None


def _is_in(address: Address, networks: tuple[Network, ...]) -> bool:
    return any(address in network for network in networks)
