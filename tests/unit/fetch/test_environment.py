"""Proxies and certificates of the environment: URLs are fetched without a proxy, and missing certificates are told."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry

from foveal.fetch.fetcher import make_fetcher
from foveal.handover.upstreams import make_upstreams
from foveal.metrics import Metrics
from foveal.settings import Settings


def test_certificates_that_are_not_there_are_told_once_where_they_would_count(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", "/no/such.pem")
    assert make_fetcher(Settings(model="builtin:tiny")) is None and not caplog.records
    assert make_fetcher(Settings(model="builtin:tiny", allow_urls=True)) is not None
    [record] = caplog.records
    assert record.__dict__["why"].startswith("SSL_CERT_FILE=/no/such.pem: No such file or directory")


@pytest.mark.parametrize(("url", "num"), [("http://llm:1", 0), ("https://llm:1", 1)])
def test_a_gateway_tells_it_only_of_servers_that_speak_tls(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, url: str, num: int
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", "/no/such.pem")
    assert make_upstreams(Settings(model="builtin:tiny", llm_url=(url,)), Metrics(CollectorRegistry())) is not None
    assert len(caplog.records) == num
