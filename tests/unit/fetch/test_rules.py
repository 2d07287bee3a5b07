"""Rules: scheme, host and port are decided before anything is looked up."""

from __future__ import annotations

from ipaddress import ip_address

import pytest

from foveal.errors import ConfigurationError, InvalidRequest, UrlForbidden
from foveal.fetch.rules import MAX_URL_LENGTH, Rules

OPEN = Rules()
PRIVATE_HOSTS = [
    "127.0.0.1",
    "[::1]",
    "[0:0:0:0:0:0:0:1]",
    "0.0.0.0",
    "10.0.0.1",
    "192.168.0.1",
    "172.16.0.1",
    "169.254.169.254",
    "[fe80::1]",
    "[::ffff:127.0.0.1]",
    "[::ffff:a9fe:a9fe]",
    "[64:ff9b::7f00:1]",
    "[2002:7f00:1::]",
    "255.255.255.255",
]
SCHEMES = [
    "file:///etc/hostname",
    "FILE:///etc/hostname",
    "ftp://127.0.0.1/a.png",
    "gopher://127.0.0.1:80/_",
    "unix:///run/x.sock",
    "javascript:alert(1)",
    "http+unix://%2Frun%2Fx.sock/a",
    "httpx://example.com/a",
    "ws://example.com/a",
    ":foo",
    "view-source:http://example.com/",
]


@pytest.mark.parametrize("host", PRIVATE_HOSTS)
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_private_addresses_are_refused_as_they_stand(host: str, scheme: str) -> None:
    with pytest.raises(UrlForbidden) as refusal:
        OPEN.url_of(f"{scheme}://{host}:8080/a.png")
    assert "8080" not in refusal.value.message


@pytest.mark.parametrize("url", SCHEMES)
def test_other_schemes_are_refused(url: str) -> None:
    with pytest.raises(UrlForbidden):
        OPEN.url_of(url)


@pytest.mark.parametrize(
    "url", ["http://user@example.com/", "https://user:secret@example.com/", "http://example.com\\@127.0.0.1/"]
)
def test_credentials_in_a_url_are_refused(url: str) -> None:
    with pytest.raises(UrlForbidden, match="password"):
        OPEN.url_of(url)


@pytest.mark.parametrize(
    "url",
    [
        "http:///a.png",
        "http:a.png",
        "http://",
        "http://a b/",
        "http://a..b/",
        "http://.a/",
        "http://a%2eb/",
        "http://a%00",
    ],
)
def test_urls_that_name_no_host_are_refused(url: str) -> None:
    with pytest.raises((UrlForbidden, InvalidRequest)):
        OPEN.url_of(url)


@pytest.mark.parametrize(
    "url", ["http://[::1", "http://a\r\nX: y/", "http://1.2.3.999/", "http://a:port/", "http://\u2100/"]
)
def test_malformed_urls_are_the_callers_mistake(url: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        OPEN.url_of(url)
    assert refusal.value.status == 400


def test_a_url_without_an_end_is_refused() -> None:
    with pytest.raises(InvalidRequest, match=str(MAX_URL_LENGTH)):
        OPEN.url_of("http://example.com/" + "a" * MAX_URL_LENGTH)


@pytest.mark.parametrize("port", [0, 1, 22, 25, 445, 1023, 65536, 99999])
def test_ports_of_other_services_are_refused(port: int) -> None:
    with pytest.raises(UrlForbidden, match="port"):
        OPEN.url_of(f"http://example.com:{port}/")


@pytest.mark.parametrize("port", ["", ":80", ":443", ":1024", ":8080", ":65535"])
def test_ports_of_web_servers_are_allowed(port: str) -> None:
    assert OPEN.url_of(f"http://example.com{port}/").host == "example.com"


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("http://h.example/a%2Fb%20c.png", b"/a%2Fb%20c.png"),
        ("http://h.example/a b.png", b"/a%20b.png"),
        ("http://h.example/\u00e4.png?q=\u00fc", b"/%C3%A4.png?q=%C3%BC"),
        ("http://h.example/a?X-Sig=a%2Bb%3D&t=1+2#part", b"/a?X-Sig=a%2Bb%3D&t=1+2"),
        ("http://h.example", b"/"),
    ],
)
def test_paths_are_escaped_once(text: str, target: bytes) -> None:
    assert OPEN.url_of(text).raw_path == target


def test_hosts_in_other_scripts_are_asked_by_their_ascii_name() -> None:
    assert OPEN.url_of("https://b\u00fccher.example/").raw_host == b"xn--bcher-kva.example"
    assert Rules(["b\u00fccher.example"]).url_of("https://XN--BCHER-KVA.example./").host == "b\u00fccher.example."


def reaches(rules: Rules, host: str, address: str, port: int = 80) -> bool:
    return rules.reach(host, port).includes(ip_address(address))


def test_without_a_list_names_reach_public_addresses_only() -> None:
    assert reaches(OPEN, "example.com", "93.184.216.34")
    assert not reaches(OPEN, "example.com", "10.0.0.1") and not reaches(OPEN, "localhost", "127.0.0.1")


def test_with_a_list_other_hosts_are_refused() -> None:
    rules = Rules(["store.internal", "*.example.com"])
    for host in ("example.com", "evil.org", "notexample.com", "a.store.internal", "8.8.8.8"):
        with pytest.raises(UrlForbidden, match="--url-allow-host"):
            rules.url_of(f"http://{host}/")
    for host in ("STORE.internal", "a.example.com", "a.b.example.com."):
        assert rules.url_of(f"http://{host}/")


def test_a_host_named_in_full_may_be_internal_but_not_this_machine_nor_metadata() -> None:
    rules = Rules(["store.internal"])
    assert reaches(rules, "store.internal", "10.1.2.3") and reaches(rules, "store.internal", "8.8.8.8")
    for address in ("127.0.0.1", "::1", "169.254.169.254", "fd00:ec2::254", "0.0.0.0", "::ffff:10.0.0.1"):
        assert not reaches(rules, "store.internal", address)


def test_a_wildcard_reaches_public_addresses_only() -> None:
    for rules in (Rules(["*.example.com"]), Rules(["*"])):
        assert reaches(rules, "a.example.com", "8.8.8.8") and not reaches(rules, "a.example.com", "10.1.2.3")
    assert Rules(["*", "store.internal"]).url_of("https://anywhere.org/")


@pytest.mark.parametrize(
    ("entry", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:4242/"),
        ("::1", "http://[0::1]:4242/"),
        ("[::1]:4242", "http://[::1]:4242/"),
        ("169.254.169.254", "http://169.254.169.254/"),
    ],
)
def test_an_address_that_is_listed_is_allowed_as_it_stands(entry: str, url: str) -> None:
    assert Rules([entry]).url_of(url)


def test_a_listed_address_is_not_reached_through_a_name() -> None:
    assert not reaches(Rules(["127.0.0.1", "store.internal"]), "store.internal", "127.0.0.1")
    assert reaches(Rules(["localhost"]), "localhost", "127.0.0.1")
    assert not reaches(Rules(["localhost"]), "localhost", "169.254.169.254")


def test_an_entry_with_a_port_opens_that_port_alone() -> None:
    rules = Rules(["store.internal:9000", "old.internal:81"])
    assert rules.url_of("http://store.internal:9000/a") and rules.url_of("http://old.internal:81/a")
    for url in ("http://store.internal/a", "http://store.internal:9001/a", "http://old.internal:82/a"):
        with pytest.raises(UrlForbidden):
            rules.url_of(url)


@pytest.mark.parametrize(
    "entry", ["", "http://a", "a/b", "a/", "*.", "**", "a*", "a:99999", "a:0", "u@a", "a b", "a#b", "[::1", "*.*.a"]
)
def test_an_entry_that_names_no_host_is_refused_at_start(entry: str) -> None:
    with pytest.raises(ConfigurationError, match="--url-allow-host"):
        Rules([entry])
