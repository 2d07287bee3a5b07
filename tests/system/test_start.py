"""How a server starts: where it listens, what it says of itself, and what it refuses."""

from __future__ import annotations

import socket
import subprocess
import sys
from urllib.parse import urlsplit

import httpx
import pytest

from foveal.settings import process_environment
from tests.system.conftest import Running, serving


def refused(*flags: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "foveal", "serve", "--port", "0", *flags]
    environment = process_environment() | variables
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)


def test_every_address_of_both_families_is_served_and_the_url_is_one() -> None:
    if not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no IPv6")
    with serving("--host", "::", "--cpu-workers", "1", "--prep-workers", "1", ready=False) as running:
        port = urlsplit(running.url).port
        for url in (running.url, f"http://127.0.0.1:{port}", f"http://[::1]:{port}", f"http://localhost:{port}"):
            assert httpx.get(url + "/live", trust_env=False).status_code == 200


def test_a_link_of_kubernetes_random_weights_and_a_typing_error_are_told_in_the_log() -> None:
    link = {"FOVEAL_PORT": "tcp://10.43.1.39:8000", "FOVEAL_SERVICE_HOST": "10.43.1.39", "FOVEAL_MODLE": "x"}
    with serving("--cpu-workers", "1", "--prep-workers", "1", variables=link) as running:
        warned = [line for line in running.lines if " warning " in line]
        for words in ("FOVEAL_PORT=tcp://10.43.1.39:8000 is the address", "FOVEAL_MODEL?", "has random weights"):
            assert sum(words in line for line in warned) == 1
        assert not any("SERVICE_HOST" in line for line in warned)
        assert "random weights" in httpx.get(running.url + "/ready", trust_env=False).json()["warnings"][0]


@pytest.mark.parametrize(
    ("flags", "variables", "words"),
    [
        ((), {"FOVEAL_API_KEY": ""}, "FOVEAL_API_KEY is empty"),
        ((), {"FOVEAL_API_KEY": " , "}, "FOVEAL_API_KEY is empty"),
        (("--api-key", ""), {}, "--api-key is empty"),
        ((), {"FOVEAL_API_KEY_FILE": "/dev/null"}, "FOVEAL_API_KEY_FILE /dev/null holds no key"),
        ((), {"FOVEAL_MODEL": "/no/such"}, "FOVEAL_MODEL /no/such"),
        (("--cors-origin", "app.example"), {}, "--cors-origin: 'app.example' is no origin"),
    ],
)
def test_what_cannot_be_ends_with_exit_code_2_and_a_sentence(
    flags: tuple[str, ...], variables: dict[str, str], words: str
) -> None:
    found = refused(*flags, **variables)
    assert found.returncode == 2 and words in found.stderr and "Traceback" not in found.stderr


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_port_in_use_ends_with_exit_code_2(host: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        found = refused("--host", host, "--port", str(taken.getsockname()[1]))
    assert found.returncode == 2 and "Address already in use" in found.stderr


def test_a_picture_behind_a_cut_wish_for_another_protocol_is_encoded(server: Running) -> None:
    wish = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA\r\n"
    body = b"not a picture"
    head = b"POST /encode HTTP/1.1\r\nHost: a\r\nContent-Type: image/png\r\nContent-Length: %d\r\n" % len(body)
    whole = head + wish + b"\r\n" + body
    parts = urlsplit(server.url)
    for place in (len(head) + 20, len(head) + 41, len(head) + 48, len(head) + len(wish), len(whole) - 3):
        with socket.create_connection((parts.hostname, parts.port), 10) as sock:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for _ in range(2):  # on a kept connection too
                sock.sendall(whole[:place])
                server.until(lambda: httpx.get(server.url + "/live", trust_env=False).status_code == 200)
                sock.sendall(whole[place:])
                answer = sock.recv(65536)
                assert answer.startswith(b"HTTP/1.1 415") and b"unsupported_type" in answer
