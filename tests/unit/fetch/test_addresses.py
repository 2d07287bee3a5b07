"""Which addresses are public and which internal: no one's network, nor a cloud's credentials, are public."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveal.fetch.addresses import is_internal, is_public, literal

PRIVATE = [
    "10.0.0.0/8",
    "172.16.0.0/12",
    "192.168.0.0/16",
    "127.0.0.0/8",
    "169.254.0.0/16",
    "100.64.0.0/10",
    "0.0.0.0/8",
    "224.0.0.0/4",
    "240.0.0.0/4",
]
v4 = st.ip_addresses(v=4) | st.sampled_from(PRIVATE).flatmap(lambda net: st.ip_addresses(network=net))
private_v4 = st.sampled_from(PRIVATE).flatmap(lambda net: st.ip_addresses(network=net))
v6 = st.ip_addresses(v=6) | st.sampled_from(
    ["2000::/3", "2001::/16", "2002::/16", "64:ff9b::/96", "fc00::/7", "fe80::/10", "ff00::/8", "::/64", "3fff::/16"]
).flatmap(lambda net: st.ip_addresses(network=net))


@given(v4)
def test_a_public_v4_address_is_one_by_the_standard_library_too(address: IPv4Address) -> None:
    if is_public(address):
        assert address.is_global
        assert not (address.is_private or address.is_multicast or address.is_reserved or address.is_link_local)
        assert not (address.is_loopback or address.is_unspecified)


@given(st.ip_addresses(v=4))
def test_an_ordinary_v4_address_is_public(address: IPv4Address) -> None:
    kept = [ip_network(text) for text in ("192.0.0.0/24", "192.88.99.0/24", "168.63.129.16/32", "224.0.0.0/3")]
    if address.is_global and not any(address in network for network in kept):
        assert is_public(address)


@given(v6)
def test_a_public_v6_address_is_one_by_the_standard_library_too(address: IPv6Address) -> None:
    if is_public(address):
        assert address.is_global and not address.is_multicast and not address.is_site_local
        assert address.ipv4_mapped is None and address.sixtofour is None and address.teredo is None


@given(private_v4)
def test_no_v6_address_hides_a_private_v4_one(address: IPv4Address) -> None:
    number = int(address)
    hidden = [
        IPv6Address(0xFFFF_0000_0000 | number),  # mapped
        IPv6Address(number),  # compatible
        IPv6Address((0x2002 << 112) | (number << 80) | 1),  # 6to4
        IPv6Address((0x20010000 << 96) | (0xFFFFFFFF ^ number)),  # Teredo
        IPv6Address((0x64FF9B << 96) | number),  # NAT64
        IPv6Address((0x64FF9B0001 << 80) | number),  # NAT64 of one's own
    ]
    assert not any(is_public(six) or is_internal(six) for six in hidden)


@given(v4 | v6)
def test_internal_is_never_public_nor_this_machine_nor_link_local(address: IPv4Address | IPv6Address) -> None:
    if is_internal(address):
        assert not is_public(address)
        assert not (address.is_loopback or address.is_link_local or address.is_multicast or address.is_unspecified)


@pytest.mark.parametrize(
    "text", ["169.254.169.254", "169.254.170.2", "fd00:ec2::254", "fd20:ce::254", "100.100.100.200", "168.63.129.16"]
)
def test_where_clouds_hand_out_credentials_is_neither_public_nor_internal(text: str) -> None:
    assert not is_public(ip_address(text)) and not is_internal(ip_address(text))


@pytest.mark.parametrize("text", ["93.184.216.34", "2606:4700::1111", "64:ff9b::5db8:d822", "2a00:1450::5"])
def test_public_hosts_are_public_also_behind_nat64(text: str) -> None:
    assert is_public(ip_address(text)) and not is_internal(ip_address(text))


@pytest.mark.parametrize("text", ["10.0.0.1", "172.31.255.255", "192.168.1.1", "100.64.0.1", "fd12:3456::1"])
def test_an_organisations_own_networks_are_internal(text: str) -> None:
    assert is_internal(ip_address(text)) and not is_public(ip_address(text))


@pytest.mark.parametrize("text", ["127.1", "0x7f000001", "2130706433", "127.0.0.01", "[::1]", "localhost", ""])
def test_odd_spellings_are_no_literals_and_go_through_the_resolver(text: str) -> None:
    assert literal(text) is None
