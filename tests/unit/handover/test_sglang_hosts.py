"""Where rows may be pushed to."""

from __future__ import annotations

from ipaddress import ip_address

import pytest

from foveal.errors import ConfigurationError, InvalidRequest, UrlForbidden
from foveal.handover.sglang.hosts import Endpoint, PushRules


@pytest.mark.parametrize(
    "text, host, port",
    [
        ("10.0.0.5:5000", "10.0.0.5", 5000),
        ("[fd00::1]:1", "fd00::1", 1),
        ("language-0.svc:65535", "language-0.svc", 65535),
    ],
)
def test_an_endpoint_is_host_and_port(text: str, host: str, port: int) -> None:
    assert Endpoint.parse(text) == Endpoint(host, port)


@pytest.mark.parametrize(
    "text", ["", "host", "host:", "host:0", "host:65536", "fd00::1:80", "tcp://h:1", "h:1;x", "h:1\n"]
)
def test_what_is_no_endpoint_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        Endpoint.parse(text)


@pytest.mark.parametrize(
    "host, caller",
    [
        ("192.0.2.7", "192.0.2.7"),
        ("192.0.2.7", "::ffff:192.0.2.7"),
        ("2001:DB8::7", "2001:db8::7"),
        ("127.0.0.1", "127.0.0.1"),
        ("127.0.0.2", "127.0.0.1"),
        ("localhost", "127.0.0.1"),
        ("LOCALHOST.", "::1"),
    ],
)
def test_a_caller_may_name_its_own_address_and_one_on_this_machine_any_of_it(host: str, caller: str) -> None:
    PushRules().check(Endpoint(host, 5000), caller)


@pytest.mark.parametrize(
    "host, caller",
    [
        ("127.0.0.1", "192.0.2.7"),
        ("192.0.2.8", "192.0.2.7"),
        ("169.254.169.254", "127.0.0.1"),
        ("0.0.0.0", "127.0.0.1"),
        ("::", "127.0.0.1"),
        ("localhost", "192.0.2.7"),
        ("localhost.example", "127.0.0.1"),
        ("language", "192.0.2.7"),
        ("192.0.2.7", ""),
        ("127.1", "127.0.0.1"),
        ("0x7f000001", "127.0.0.1"),
    ],
)
def test_no_other_host_is_pushed_to(host: str, caller: str) -> None:
    with pytest.raises(UrlForbidden, match="--sglang-allow-host"):
        PushRules().check(Endpoint(host, 5000), caller)


def test_the_setting_names_hosts_addresses_and_networks() -> None:
    rules = PushRules(["Language.svc", "192.0.2.7", "10.0.0.0/8", "localhost"])
    for host in ("language.svc", "LANGUAGE.SVC.", "192.0.2.7", "10.9.8.7", "localhost"):
        rules.check(Endpoint(host, 1), "203.0.113.1")
    with pytest.raises(UrlForbidden):
        rules.check(Endpoint("192.0.2.8", 1), "203.0.113.1")


@pytest.mark.parametrize("text", ["10.0.0.5/8", "http://host", "a b", "10.0.0", "host:80", "*"])
def test_an_entry_that_is_no_host_is_refused_at_start(text: str) -> None:
    with pytest.raises(ConfigurationError, match="--sglang-allow-host"):
        PushRules([text])


async def test_a_name_is_looked_up_only_for_what_was_allowed_and_an_address_never() -> None:
    asked: list[str] = []

    async def resolve(host: str) -> list:
        asked.append(host)
        return [ip_address("10.0.0.9"), ip_address("10.0.0.10")]

    rules = PushRules(["language.svc"], resolve)
    assert await rules.address_of(Endpoint("Language.svc", 1)) == ip_address("10.0.0.9")
    assert await rules.address_of(Endpoint("::ffff:10.0.0.1", 1)) == ip_address("10.0.0.1")
    assert await rules.address_of(Endpoint("localhost", 1)) == ip_address("127.0.0.1")
    assert asked == ["language.svc"]
