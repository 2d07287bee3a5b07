"""Images by URL, from a web server that lies, stalls and floods: bounded, named, and nobody else waits."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from foveal_client import Client

from .conftest import Running, serving
from .test_encode import noise
from .test_hostile import rss_mib
from .web import Web, hostile_web

PICTURE = noise(80, 60, 5)
ALL_PUBLIC = ("--allow-urls", "--url-allow-host", "*")
SMALL = ("--prep-workers", "1", "--token-budgets", "64,128", "--max-body-bytes", "8MiB")


@pytest.fixture(scope="module")
def web() -> Iterator[Web]:
    with hostile_web(PICTURE) as found:
        yield found


@pytest.fixture(scope="module")
def fetching() -> Iterator[Running]:
    """A server that may fetch from every public host, and from 127.0.0.1 because it is listed as it stands."""
    with serving(*ALL_PUBLIC, "--url-allow-host", "127.0.0.1", "--url-timeout-seconds", "3", *SMALL) as running:
        yield running


@pytest.fixture(autouse=True)
def nothing_stays_open(web: Web, fetching: Running) -> Iterator[None]:
    yield
    fetching.until(lambda: web.num_open == 0)
    fetching.until(lambda: fetching.metric("foveal_inflight_bytes") == 0)


def encode(running: Running, *items: object) -> httpx.Response:
    return httpx.post(running.url + "/encode", json={"images": list(items)}, trust_env=False, timeout=60)


def refused(answer: httpx.Response, status: int, code: str, param: str = "images[0]") -> dict:
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (status, code, param), error
    return error


def test_a_picture_by_url_has_the_embedding_of_the_picture_itself(fetching: Running, web: Web) -> None:
    with Client(fetching.url) as client:
        direct = client.encode(PICTURE)
    again = web.url("/picture")
    urls = [web.url(path) for path in ("/picture", "/gzip", "/to?/picture", f"/to?{again}")]
    found = encode(fetching, *urls)
    assert found.status_code == 200, found.text
    assert {e["sha256"] for e in found.json()["data"]} == {direct.sha256}
    assert len({e["embedding"] for e in found.json()["data"]}) == 1
    assert found.headers["server-timing"].startswith("fetch;dur=")
    openai = {"input": [{"type": "image_url", "image_url": {"url": web.url("/picture")}}]}
    assert httpx.post(fetching.url + "/v1/embeddings", json=openai, trust_env=False).status_code == 200
    assert "accept-encoding: identity" in web.heads[-1].lower() and f"Host: 127.0.0.1:{web.port}" in web.heads[-1]


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/404", 424, "url_failed"),
        ("/503", 424, "url_failed"),
        ("/loop", 424, "url_failed"),
        ("/reset", 424, "url_failed"),
        ("/garbage", 424, "url_failed"),
        ("/nothing", 424, "url_failed"),
        ("/headless", 424, "url_failed"),
        ("/long", 424, "url_failed"),
        ("/silent", 424, "url_failed"),
        ("/drip", 424, "url_failed"),
        ("/endless", 413, "too_large"),
        ("/bomb", 413, "too_large"),
        ("/huge", 413, "too_large"),
        ("/short", 422, "undecodable"),
        ("/empty", 422, "undecodable"),
        ("/html", 415, "unsupported_type"),
    ],
)
def test_a_hostile_answer_fails_the_request_that_asked_for_it_alone(
    fetching: Running, web: Web, path: str, status: int, code: str
) -> None:
    before = rss_mib(fetching)
    error = refused(encode(fetching, web.url("/picture"), web.url(path)), status, code, "images[1]")
    assert error["retryable"] is (path in ("/503", "/reset", "/garbage", "/nothing", "/long", "/silent", "/drip"))
    assert rss_mib(fetching) - before < 50
    assert encode(fetching, web.url("/picture")).status_code == 200


def test_a_host_without_an_address_fails_and_is_not_worth_a_retry(fetching: Running) -> None:
    refused(encode(fetching, "http://no-such-host.invalid/a.png"), 424, "url_failed")


def spellings(port: int) -> list[str]:
    """This machine under other names than the listed one, and other private addresses."""
    hosts = ["localhost", "LOCALHOST.", "127.1", "127.0.1", "0x7f000001", "2130706433", "017700000001", "127.0.0.2"]
    hosts += [
        "[::1]",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "[64:ff9b::7f00:1]",
        "[2002:7f00:1::1]",
        "0.0.0.0",
        "[::]",
    ]
    hosts += ["10.0.0.1", "172.16.0.1", "192.168.0.1", "169.254.169.254", "100.64.0.1", "[fe80::1]", "[fd00::1]", "0"]
    urls = [f"http://{host}:{port}/picture" for host in hosts]
    return [*urls, f"http://user:pass@127.0.0.1:{port}/", f"http://example.org\\@127.0.0.1:{port}/"]


SCHEMES = ["file:///etc/hostname", "ftp://127.0.0.1/a", "gopher://127.0.0.1:80/_", "unix:///run/x.sock", "javascript:0"]


def test_no_spelling_of_a_private_address_is_connected_to(fetching: Running, web: Web) -> None:
    before = len(web.heads)
    for url in spellings(web.port):
        error = refused(encode(fetching, {"url": url}), 403, "url_forbidden")
        redirected = refused(encode(fetching, web.url(f"/to?{url}")), 403, "url_forbidden")
        for message in (error["message"], redirected["message"]):
            assert "refused" not in message and "open" not in message
    assert len(web.heads) == before + len(spellings(web.port))  # the redirects, and none of their targets


@pytest.mark.parametrize("url", SCHEMES)
def test_other_schemes_are_refused_also_behind_a_redirect(fetching: Running, web: Web, url: str) -> None:
    refused(encode(fetching, url), 403, "url_forbidden")
    refused(encode(fetching, web.url(f"/to?{url}")), 403, "url_forbidden")


def test_data_uris_stay_what_they_are(fetching: Running) -> None:
    refused(encode(fetching, "data:text/html,<p>"), 400, "bad_base64")
    refused(encode(fetching, "data://127.0.0.1/a"), 400, "bad_base64")


def test_others_are_served_while_hosts_hang(fetching: Running, web: Web) -> None:
    hangs = 5
    with ThreadPoolExecutor(hangs) as pool, Client(fetching.url, max_retries=0) as client:
        stuck = [pool.submit(encode, fetching, web.url("/silent")) for _ in range(hangs)]
        fetching.until(lambda: web.num_silent == hangs)
        assert fetching.metric("foveal_inflight_items") == 0
        assert client.encode(noise(64, 64, 9)).tokens > 0
        assert encode(fetching, web.url("/picture")).status_code == 200
        for call in stuck:
            refused(call.result(), 424, "url_failed")


def test_a_caller_who_leaves_ends_its_fetches(fetching: Running, web: Web) -> None:
    host, port = fetching.url.removeprefix("http://").split(":")
    body = b'{"images":["%s"]}' % web.url("/silent").encode()
    head = b"POST /encode HTTP/1.1\r\nHost: f\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    with socket.create_connection((host, int(port))) as sock:
        sock.sendall(head % len(body) + body)
        fetching.until(lambda: web.num_silent == 1)
    fetching.until(lambda: any("code=gone" in line for line in fetching.lines))


def test_the_deadline_of_the_request_ends_its_fetches(fetching: Running, web: Web) -> None:
    headers = {"X-Request-Timeout-Ms": "300"}
    asks = {"images": [web.url("/silent")]}
    late = httpx.post(fetching.url + "/encode", json=asks, headers=headers, trust_env=False)
    assert late.status_code == 504 and late.json()["error"]["code"] == "deadline_exceeded"


def test_urls_are_off_unless_they_are_allowed(server: Running, web: Web) -> None:
    before = len(web.heads)
    assert "--allow-urls" in refused(encode(server, web.url("/picture")), 403, "url_forbidden")["message"]
    assert len(web.heads) == before
