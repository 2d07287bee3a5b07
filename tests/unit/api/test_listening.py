"""A server listens on every address of its host, at one port, and prints a URL that is one."""

from __future__ import annotations

import contextlib
import errno
import socket
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from foveal.api import listening
from foveal.api.listening import listen, url_of
from foveal.errors import ConfigurationError
from foveal.setting_types import bare_host
from foveal.settings import Settings


def _has_ipv6() -> bool:
    with contextlib.suppress(OSError), socket.create_server(("::1", 0), family=socket.AF_INET6):
        return True
    return False


needs_ipv6 = pytest.mark.skipif(not _has_ipv6(), reason="this machine has no IPv6")


@contextlib.contextmanager
def listening_on(host: str, port: int = 0) -> Iterator[list[socket.socket]]:
    sockets = listen(host, port)
    try:
        yield sockets
    finally:
        for sock in sockets:
            sock.close()


def reached(address: str, port: int) -> bool:
    try:
        socket.create_connection((address, port), 5).close()
    except ConnectionRefusedError:
        return False
    return True


@needs_ipv6
@pytest.mark.parametrize(
    ("host", "ipv4", "ipv6"),
    [("::", True, True), ("::1", False, True), ("0.0.0.0", True, False), ("127.0.0.1", True, False)],
)
def test_a_host_is_reached_at_its_addresses_and_no_other(host: str, ipv4: bool, ipv6: bool) -> None:
    with listening_on(host) as sockets:
        ports = {sock.getsockname()[1] for sock in sockets}
        assert len(ports) == 1
        port = ports.pop()
        assert (reached("127.0.0.1", port), reached("::1", port)) == (ipv4, ipv6)
        url = urlsplit(url_of(host, port))
        assert url.port == port and reached(str(url.hostname), port)


def test_a_name_is_all_of_its_addresses() -> None:
    with listening_on("localhost") as sockets:
        port = sockets[0].getsockname()[1]
        assert all(reached(sock.getsockname()[0], port) for sock in sockets)
        assert url_of("localhost", port) == f"http://localhost:{port}"


@needs_ipv6
def test_callers_by_ipv4_keep_their_address() -> None:
    with listening_on("::") as sockets:
        port = sockets[0].getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):
            accepted, caller = sockets[1].accept()
            accepted.close()
        assert caller[0] == "127.0.0.1"


@pytest.mark.parametrize("host", ["::", "127.0.0.1", "localhost", "0.0.0.0"])
def test_a_port_in_use_is_refused_and_leaves_no_socket(host: str) -> None:
    if host == "::" and not _has_ipv6():
        pytest.skip("this machine has no IPv6")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigurationError, match=rf"--host {host} --port {port}: Address already in use; choose"):
            listen(host, port)
        assert _has_ipv6() is False or not reached("::1", port)


@pytest.mark.parametrize("number", [errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL])
def test_without_ipv6_its_hosts_are_refused_in_words_and_names_do_without(
    number: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    create = socket.create_server

    def without(address: Any, *, family: socket.AddressFamily, **more: Any) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(number, "not here")
        return create(address, family=family, **more)

    both = [(socket.AF_INET6, 0, 0, "", ("::1", 0, 0, 0)), (socket.AF_INET, 0, 0, "", ("127.0.0.1", 0))]
    monkeypatch.setattr(socket, "create_server", without)
    for host in ("::", "::1"):
        with pytest.raises(ConfigurationError, match=rf"--host {host} .*IPv6 is off.*0\.0\.0\.0"):
            listen(host, 0)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: both)
    with listening_on("localhost") as sockets:
        assert [sock.getsockname()[0] for sock in sockets] == ["127.0.0.1"]
    assert "not listening on ::1" in caplog.text


def test_a_free_port_that_is_taken_at_the_next_address_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    create, fails = socket.create_server, [True, True]

    def unlucky(address: Any, *, family: socket.AddressFamily, **more: Any) -> socket.socket:
        if address[1] and fails:
            fails.pop()
            raise OSError(errno.EADDRINUSE, "taken")
        return create(address, family=family, **more)

    both = [(socket.AF_INET, 0, 0, "", ("127.0.0.1", 0)), (socket.AF_INET, 0, 0, "", ("127.0.0.2", 0))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: both)
    monkeypatch.setattr(socket, "create_server", unlucky)
    with listening_on("name") as sockets:
        assert len({sock.getsockname()[1] for sock in sockets}) == 1 and len(sockets) == 2
    assert listening.FREE_PORTS_TRIED > 2


def test_a_name_without_address_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"no address is known for 'no-such\.invalid'"):
        listen("no-such.invalid", 0)


@pytest.mark.parametrize(
    ("text", "host", "url"),
    [
        ("::", "::", "http://[::]:80"),
        ("[::]", "::", "http://[::]:80"),
        ("0:0:0:0:0:0:0:0", "::", "http://[::]:80"),
        ("[::1]", "::1", "http://[::1]:80"),
        ("fe80::1%eth0", "fe80::1%eth0", "http://[fe80::1%25eth0]:80"),
        ("127.0.0.1", "127.0.0.1", "http://127.0.0.1:80"),
        ("my-host.example", "my-host.example", "http://my-host.example:80"),
    ],
)
def test_a_host_may_be_written_in_several_ways_and_its_url_is_one(text: str, host: str, url: str) -> None:
    assert Settings(host=text).host == host and url_of(host, 80) == url
    assert httpx.URL(url_of(host, 8000)).port == 8000


@pytest.mark.parametrize("text", ["http://a", "a:80", "0.0.0.0:8000", "[::1]:80", "a b", "a/b", "[a"])
def test_what_is_no_host_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="without port"):
        bare_host(text)
