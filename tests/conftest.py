"""Shared by all tests: an environment whose proxies lead nowhere and whose certificates are not there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

NOWHERE = {
    "HTTP_PROXY": "http://user:secret@127.0.0.1:9",
    "HTTPS_PROXY": "http://user:secret@127.0.0.1:9",
    "ALL_PROXY": "socks5://127.0.0.1:9",
    "NO_PROXY": "",
    "SSL_CERT_FILE": "/no/such/certificates.pem",
}
"""What a company's machine may have. Nothing that a test asks is beyond this machine, so nothing may notice."""


@pytest.fixture(scope="session", autouse=True)
def hostile_network() -> Iterator[None]:
    """Before any other fixture, since servers are started by some."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in NOWHERE.items():
            patch.setenv(name, value)
            if name.endswith("PROXY"):
                patch.setenv(name.lower(), value)
        yield
