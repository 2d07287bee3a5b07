"""Which servers are asked by way of a proxy, what is told of it, and what never is."""

from __future__ import annotations

import pickle
import ssl
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveal_client import (
    APIStatusError,
    AsyncClient,
    Client,
    ConnectionFailed,
    FovealError,
    InvalidEnvironment,
    _http,
    _proxies,
)
from foveal_client._ec.settings import PickupSettings
from foveal_client._ec.thread import FetchThread
from foveal_client._http import Network, unusable_certificates
from foveal_client._proxies import Setting, is_this_machine, proxy_for

PROXY = Setting("HTTP_PROXY", "http://proxy:3128")
NAMES = [f"{kind}_{what}" for kind in ("HTTP", "HTTPS", "ALL", "NO") for what in ("PROXY",)]
Variables = Callable[..., None]


@pytest.fixture
def variables(monkeypatch: pytest.MonkeyPatch) -> Variables:
    """An environment with these variables, and no other that tells of a network."""

    def set_them(**given: str) -> None:
        for name in (*NAMES, *(name.lower() for name in NAMES), "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUEST_METHOD"):
            monkeypatch.delenv(name, raising=False)
        for name, value in given.items():
            monkeypatch.setenv(name, value)

    set_them()
    return set_them


THIS_MACHINE = [
    "127.0.0.1", "127.8.9.1", "127.1", "0x7f.1", "2130706433", "localhost", "LOCALHOST", "localhost.", "a.localhost",
    "ip6-localhost", "[::1]", "[0:0:0:0:0:0:0:1]", "[::ffff:127.0.0.1]", "0.0.0.0", "[::]",
]  # fmt: skip
ELSEWHERE = ["10.0.0.1", "128.0.0.1", "localhost.example", "notlocalhost", "[::2]", "[fe80::1]", "[::ffff:10.0.0.1]"]


@pytest.mark.parametrize("host", THIS_MACHINE)
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_no_proxy_is_asked_for_this_machine(host: str, scheme: str) -> None:
    wrong = Setting("ALL_PROXY", "socks4://no such proxy")
    assert proxy_for(f"{scheme}://{host}:8000/base", {"http": wrong, "all": wrong}, None) is None


@pytest.mark.parametrize("host", ELSEWHERE)
def test_a_proxy_is_asked_for_everything_else(host: str) -> None:
    assert not is_this_machine(host)
    found = proxy_for(f"http://{host}:8000", {"http": PROXY}, None)
    assert found is not None and found.url == "http://proxy:3128"


@given(st.text(max_size=30))
def test_any_text_is_a_host_here_or_elsewhere(host: str) -> None:
    assert is_this_machine(host) in (True, False)


@pytest.mark.parametrize(
    ("no_proxy", "url", "is_exempt"),
    [
        ("*", "http://gpu.example", True),
        ("a.example, *", "http://gpu.example", True),
        ("gpu.example", "http://gpu.example:8000", True),
        ("GPU.Example", "http://gpu.EXAMPLE", True),
        ("gpu.example.", "http://gpu.example", True),
        ("example", "http://gpu.example", True),
        (".example", "http://gpu.example", True),
        ("*.example", "http://gpu.example", True),
        ("other.example .example", "http://gpu.example", True),
        ("ample", "http://gpu.example", False),
        ("gpu.example:8000", "http://gpu.example:8000", True),
        ("gpu.example:8000", "http://gpu.example:8001", False),
        ("gpu.example:80", "http://gpu.example", True),
        ("gpu.example:443", "https://gpu.example", True),
        ("http://gpu.example", "http://gpu.example", True),
        ("10.1.2.3", "http://10.1.2.3:8000", True),
        ("10.0.0.0/8", "http://10.1.2.3:8000", True),
        ("10.0.0.0/8", "http://11.1.2.3:8000", False),
        ("10.0.0.0/8", "http://gpu.example", False),
        ("10.1.2.3:8000", "http://10.1.2.3:8000", True),
        ("fd00::1", "http://[fd00::1]:8000", True),
        ("[fd00::1]", "http://[fd00::1]:8000", True),
        ("[fd00::1]:8000", "http://[fd00::1]:8000", True),
        ("[fd00::1]:8001", "http://[fd00::1]:8000", False),
        ("fd00::/8", "http://[fd00::1]:8000", True),
        ("fd00::/8", "http://10.1.2.3", False),
        ("", "http://gpu.example", False),
        (" , ,", "http://gpu.example", False),
        ("[", "http://gpu.example", False),
    ],
)
def test_no_proxy_names_hosts_networks_and_ports(no_proxy: str, url: str, is_exempt: bool) -> None:
    found = proxy_for(url, {"http": PROXY, "https": PROXY}, Setting("NO_PROXY", no_proxy))
    assert (found is None) == is_exempt


@given(st.text(max_size=40), st.sampled_from(["http://gpu.example", "http://10.1.2.3:1", "http://[fd00::1]:1"]))
def test_whatever_no_proxy_holds_is_a_proxy_or_a_sentence(no_proxy: str, url: str) -> None:
    try:
        proxy_for(url, {"http": PROXY}, Setting("NO_PROXY", no_proxy))
    except InvalidEnvironment as error:
        assert "NO_PROXY has" in str(error)


@given(st.text(max_size=40))
def test_whatever_a_proxy_variable_holds_is_a_proxy_or_a_sentence(value: str) -> None:
    try:
        found = proxy_for("http://gpu.example", {"http": Setting("HTTP_PROXY", value)}, None)
    except InvalidEnvironment as error:
        assert str(error).startswith("HTTP_PROXY=")
    else:
        assert found is not None and found.url.scheme in ("http", "https", "socks5", "socks5h")


SECRETS = st.text(st.characters(codec="ascii", categories=("L", "N")), min_size=6, max_size=12).map("s3cret{}".format)


@given(SECRETS, st.sampled_from(["http://{}@proxy", "http://me:{}@[bad", "{}:x@proxy:1", "ftp://a:{}@h", "http://{}@"]))
def test_no_password_of_a_proxy_is_ever_shown(secret: str, form: str) -> None:
    setting = Setting("HTTP_PROXY", form.format(secret))
    shown = [repr(setting), setting.shown]
    try:
        found = proxy_for("http://gpu.example", {"http": setting}, None)
        assert found is not None
        shown += [repr(found), found.shown]
    except InvalidEnvironment as error:
        assert error.__cause__ is None
        shown.append(str(error))
    assert not any(secret in text for text in shown) and all("***" in text for text in (shown[1], shown[-1]))


def test_lower_case_wins_and_the_variable_that_was_used_is_named(variables: Variables) -> None:
    variables(HTTP_PROXY="ftp://upper", http_proxy="ftp://lower")
    with pytest.raises(InvalidEnvironment, match=r"^http_proxy=ftp://lower names no proxy of a known kind"):
        Client("http://gpu.example")
    variables(ALL_PROXY="ftp://all")
    with pytest.raises(InvalidEnvironment, match=r"correct or unset ALL_PROXY"):
        Client("https://gpu.example")


def test_an_empty_variable_is_none(variables: Variables) -> None:
    variables(HTTP_PROXY="", NO_PROXY="", SSL_CERT_FILE="", SSL_CERT_DIR="")
    assert Network.to(["http://gpu.example"]).ways == {"http://gpu.example": None}


@pytest.mark.parametrize("kind", [Client, AsyncClient])
@pytest.mark.parametrize(
    ("given", "url", "words"),
    [
        ({"ALL_PROXY": "socks5://p:1"}, "http://h", r"ALL_PROXY=socks5://p:1 needs the package socksio: pip install"),
        ({"HTTPS_PROXY": "http://[bad"}, "https://h", r"HTTPS_PROXY=http://\[bad is no URL of a proxy"),
        ({"HTTP_PROXY": "http://p:port"}, "http://h", r"HTTP_PROXY=http://p:port is no URL of a proxy"),
        ({"HTTP_PROXY": "http://"}, "http://h", r"is no URL of a proxy"),
        (
            {"HTTP_PROXY": "socks4://p"},
            "http://h",
            r"names no proxy of a known kind \(http, https, socks5 or socks5h\)",
        ),
        ({"HTTP_PROXY": "http://p", "NO_PROXY": "10.0.0.0/99"}, "http://10.0.0.1", r"NO_PROXY has '10.0.0.0/99'"),
        ({"SSL_CERT_FILE": "/no/such"}, "https://h", r"SSL_CERT_FILE=/no/such: No such file or directory"),
        ({"SSL_CERT_FILE": __file__}, "https://h", r"SSL_CERT_FILE=.*: there is no certificate; name a file"),
        ({"SSL_CERT_FILE": "/tmp"}, "https://h", r"SSL_CERT_FILE=/tmp: "),
        ({"SSL_CERT_DIR": "/no/such"}, "https://h", r"SSL_CERT_DIR=/no/such: No such file or directory"),
        ({"SSL_CERT_FILE": "/no/such", "HTTP_PROXY": "https://p"}, "http://h", r"SSL_CERT_FILE=/no/such"),
    ],
)
def test_what_cannot_be_used_is_an_error_of_the_sdk_that_names_the_variable(
    variables: Variables, monkeypatch: pytest.MonkeyPatch, kind: Any, given: dict[str, str], url: str, words: str
) -> None:
    monkeypatch.setattr(_proxies.importlib.util, "find_spec", lambda name: None)
    variables(**given)
    with pytest.raises(InvalidEnvironment, match=words) as caught:
        kind(url)
    assert isinstance(caught.value, FovealError) and isinstance(caught.value, ValueError)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "http://gpu.example:80"])
def test_certificates_are_not_read_where_nobody_speaks_tls(
    variables: Variables, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    variables(SSL_CERT_FILE="/no/such", HTTPS_PROXY="ftp://never asked")
    monkeypatch.setattr(_http, "_tls", lambda: pytest.fail("certificates were read"))
    Client(url).close()


def test_a_client_without_certificates_takes_no_server_unchecked() -> None:
    tls = Network().tls
    assert tls.verify_mode == ssl.CERT_REQUIRED and tls.check_hostname and not tls.get_ca_certs()


def test_the_certificates_of_the_environment_are_used(variables: Variables, tmp_path: Path) -> None:
    import certifi

    pem = Path(certifi.where()).read_text().partition("-----END CERTIFICATE-----")
    (tmp_path / "one.pem").write_text(pem[0] + pem[1])
    variables(SSL_CERT_FILE=str(tmp_path / "one.pem"), SSL_CERT_DIR="/no/such")
    assert len(Network.to(["https://gpu.example"]).tls.get_ca_certs()) == 1
    assert unusable_certificates() is None
    variables()
    assert len(Network.to(["https://gpu.example"]).tls.get_ca_certs()) > 100


def test_a_transport_or_a_client_of_the_callers_leaves_the_environment_alone(variables: Variables) -> None:
    variables(HTTP_PROXY="ftp://wrong")
    transport = httpx.MockTransport(lambda request: httpx.Response(200, json={"data": [{"id": "m"}]}))
    with Client("http://gpu.example", transport=transport) as client:
        assert client.models() == ["m"]
    with httpx.Client(transport=transport) as http, Client("http://gpu.example", http_client=http) as client:
        assert client.models() == ["m"]


class Heard:
    """A server on this machine: what it was asked."""

    def __init__(self) -> None:
        self.url = ""
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.status, self.body = 200, b'{"data": [{"id": "m"}]}'


@pytest.fixture
def heard() -> Iterator[Heard]:
    found = Heard()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found.asked.append((self.path, {name.lower(): value for name, value in self.headers.items()}))
            self.send_response(found.status)
            self.send_header("Content-Length", str(len(found.body)))
            self.end_headers()
            self.wfile.write(found.body)

        do_CONNECT = do_GET

        def log_message(self, *args: object) -> None:
            """Be quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        found.url = f"http://127.0.0.1:{http.server_port}"
        thread = threading.Thread(target=http.serve_forever)
        thread.start()
        yield found
        http.shutdown()
        thread.join()


async def ask(kind: str, url: str) -> list[str]:
    if kind == "sync":
        with Client(url, api_key="k", max_retries=0) as client:
            return client.models()
    async with AsyncClient(url, api_key="k", max_retries=0) as awaited:
        return await awaited.models()


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_a_server_on_this_machine_is_asked_straight(variables: Variables, heard: Heard, kind: str) -> None:
    variables(HTTP_PROXY="http://127.0.0.1:9", ALL_PROXY="socks5://127.0.0.1:9", SSL_CERT_FILE="/no/such")
    assert await ask(kind, heard.url) == ["m"]
    assert [path for path, _ in heard.asked] == ["/v1/models"]


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_a_server_elsewhere_is_asked_by_way_of_the_proxy(variables: Variables, heard: Heard, kind: str) -> None:
    variables(HTTP_PROXY=heard.url.replace("//", "//me:pass@"))
    assert await ask(kind, "http://gpu.example/base") == ["m"]
    [(path, headers)] = heard.asked
    assert path == "http://gpu.example/base/v1/models" and headers["proxy-authorization"].startswith("Basic ")


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_servers_of_one_host_go_their_own_ways(variables: Variables, heard: Heard, kind: str) -> None:
    variables(HTTP_PROXY=heard.url, NO_PROXY="gpu.invalid:8001")
    assert await ask(kind, "http://gpu.invalid") == ["m"]
    with pytest.raises(ConnectionFailed) as caught:
        await ask(kind, "http://gpu.invalid:8001,http://gpu.invalid:8001/b")
    assert "proxy" not in str(caught.value) and len(heard.asked) == 1


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize("url", ["http://gpu.example", "https://gpu.example"])
async def test_a_proxy_that_is_not_there_is_named_without_its_password(
    variables: Variables, kind: str, url: str
) -> None:
    variables(ALL_PROXY="http://me:s3cret@127.0.0.1:9")
    with pytest.raises(ConnectionFailed) as caught:
        await ask(kind, url)
    assert "(through the proxy http://***@127.0.0.1:9 of ALL_PROXY)" in str(caught.value) and caught.value.retryable
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_a_proxy_that_answers_by_itself_is_named(variables: Variables, heard: Heard, kind: str) -> None:
    variables(ALL_PROXY=heard.url)
    heard.status, heard.body = 407, b"who are you?"
    with pytest.raises(APIStatusError, match=r"407.*answered through the proxy http://127.*who are you"):
        await ask(kind, "http://gpu.example")
    with pytest.raises(ConnectionFailed, match=r"407.*through the proxy http://127"):
        await ask(kind, "https://gpu.example")


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_no_password_of_a_netrc_is_sent(
    variables: Variables, heard: Heard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    (tmp_path / ".netrc").write_text("machine 127.0.0.1\nlogin me\npassword s3cret\n")
    (tmp_path / ".netrc").chmod(0o600)
    monkeypatch.setenv("NETRC", str(tmp_path / ".netrc"))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert await ask(kind, heard.url) == ["m"]
    assert heard.asked[0][1]["authorization"] == "Bearer k"


def test_the_connector_asks_a_server_on_this_machine_straight_and_refuses_a_wrong_proxy(
    variables: Variables, heard: Heard
) -> None:
    from foveal_client._ec.fetch import Need, PickupFailed

    need = Need("ab" * 32, (1, 4, 6), 8, 2)
    variables(HTTP_PROXY="http://127.0.0.1:9")
    heard.status = 401
    thread = FetchThread(PickupSettings.of({"url": heard.url, "api_key": "k", "timeout_seconds": 5}))
    with pytest.raises(PickupFailed, match="401"):
        thread.start(need).result(timeout=30)
    thread.close()
    assert heard.asked[0][0] == f"/embeddings/{need.key}"
    variables(HTTP_PROXY="ftp://wrong")
    with pytest.raises(ValueError, match="HTTP_PROXY=ftp://wrong"):
        FetchThread(PickupSettings.of({"url": "http://gpu.example"}))


@pytest.mark.parametrize("url", ["http://[bad", "http://h:port", "http://", "http:///path"])
def test_a_server_that_is_no_url_is_a_value_error(url: str) -> None:
    with pytest.raises(ValueError, match="base_url"):
        Client(url)


def test_children_and_neighbours_are_asked_straight_whatever_the_environment_says(variables: Variables) -> None:
    variables(ALL_PROXY="ftp://wrong", HTTP_PROXY="ftp://wrong")
    network = Network.straight_to(["http://10.1.2.3:8000"])
    with network.client(base_url="http://10.1.2.3:8000") as http:
        assert not network.ways and not http._mounts
