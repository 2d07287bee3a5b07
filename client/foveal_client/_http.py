"""The one place where HTTP clients are built: which way requests take, and whose certificates count.

The environment is read here, once for each client, for the servers that it will ask; httpx itself never looks at it. So
no password of a .netrc is sent, no proxy sees what is meant for this machine, and what is wrong has a sentence.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from foveal_client import _defaults
from foveal_client._errors import InvalidEnvironment
from foveal_client._proxies import Proxy, proxy_for

PROXY = "foveal_proxy"
"""Extension of an answer that came through a proxy: the proxy, as it may be told."""

# Trusts nobody: what is built with it and asked for https all the same fails, and is not taken unchecked.
_NO_CERTIFICATES = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


@dataclass(frozen=True)
class Network:
    """The ways to a set of servers."""

    ways: Mapping[str, Proxy | None] = field(default_factory=dict)
    """By a server's base URL; None where it is asked directly."""
    tls: ssl.SSLContext = _NO_CERTIFICATES

    @classmethod
    def to(cls, urls: Sequence[str]) -> Network:
        """By way of the proxies of the environment. Raises InvalidEnvironment for one that cannot be used."""
        settings, no_proxy = _defaults.proxies()
        ways = {url: proxy_for(url, settings, no_proxy) for url in urls}
        return cls(ways, _tls_for([*urls, *(str(proxy.url) for proxy in ways.values() if proxy)]))

    @classmethod
    def straight_to(cls, urls: Sequence[str]) -> Network:
        """Without any proxy: children of ours, neighbours in a cluster, servers that are measured."""
        return cls({}, _tls_for(urls))

    def client(self, transport: httpx.BaseTransport | None = None, **settings: Any) -> httpx.Client:
        """A blocking client; `transport` replaces the network."""
        if transport is not None:
            return httpx.Client(transport=transport, trust_env=False, **settings)
        limits = settings.pop("limits", _defaults.LIMITS)
        through = {proxy: _Through(proxy, self.tls, limits) for proxy in self._proxies()}
        direct = httpx.HTTPTransport(verify=self.tls, trust_env=False, limits=limits)
        return httpx.Client(transport=direct, mounts=self._mounts(through), trust_env=False, **settings)

    def async_client(self, transport: httpx.AsyncBaseTransport | None = None, **settings: Any) -> httpx.AsyncClient:
        """Its awaited twin."""
        if transport is not None:
            return httpx.AsyncClient(transport=transport, trust_env=False, **settings)
        limits = settings.pop("limits", _defaults.LIMITS)
        through = {proxy: _AsyncThrough(proxy, self.tls, limits) for proxy in self._proxies()}
        direct = httpx.AsyncHTTPTransport(verify=self.tls, trust_env=False, limits=limits)
        return httpx.AsyncClient(transport=direct, mounts=self._mounts(through), trust_env=False, **settings)

    def _proxies(self) -> set[Proxy]:
        return {proxy for proxy in self.ways.values() if proxy is not None}

    def _mounts(self, through: Mapping[Proxy, Any]) -> dict[str, Any]:
        """By origin. Those that are asked directly are there too: one host may have servers of both kinds."""
        if not through:
            return {}
        origins = {url: str(httpx.URL(url).copy_with(raw_path=b"/")).rstrip("/") for url in self.ways}
        return {origins[url]: None if proxy is None else through[proxy] for url, proxy in self.ways.items()}


class _Through(httpx.HTTPTransport):
    """By way of one proxy, which errors and answers then name."""

    def __init__(self, proxy: Proxy, tls: ssl.SSLContext, limits: httpx.Limits) -> None:
        super().__init__(verify=tls, trust_env=False, limits=limits, proxy=_proxy_of(proxy, tls))
        self._shown = proxy.shown

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        try:
            answer = super().handle_request(request)
        except Exception as error:
            raise _naming(error, self._shown) from error
        answer.extensions[PROXY] = self._shown
        return answer


class _AsyncThrough(httpx.AsyncHTTPTransport):
    """The awaited twin."""

    def __init__(self, proxy: Proxy, tls: ssl.SSLContext, limits: httpx.Limits) -> None:
        super().__init__(verify=tls, trust_env=False, limits=limits, proxy=_proxy_of(proxy, tls))
        self._shown = proxy.shown

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        try:
            answer = await super().handle_async_request(request)
        except Exception as error:
            raise _naming(error, self._shown) from error
        answer.extensions[PROXY] = self._shown
        return answer


def unusable_certificates() -> str | None:
    """What is wrong with the certificates that the environment names; None when nothing is, or it names none."""
    try:
        _tls()
    except InvalidEnvironment as error:
        return str(error)
    return None


def _naming(error: Exception, proxy: str) -> Exception:
    """The same error, with the proxy in its text; those of the SOCKS package become httpx's."""
    text = f"{error or type(error).__name__} (through {proxy})"
    if isinstance(error, httpx.TransportError):
        return type(error)(text)
    return httpx.ProxyError(text) if type(error).__module__.startswith("socksio") else error


def _proxy_of(proxy: Proxy, tls: ssl.SSLContext) -> httpx.Proxy:
    return httpx.Proxy(proxy.url, ssl_context=tls if proxy.url.scheme == "https" else None)


def _tls_for(urls: Sequence[str]) -> ssl.SSLContext:
    """Certificates are read where a server or a proxy speaks TLS, and only there: it takes milliseconds."""
    return _tls() if any(url.lower().startswith("https:") for url in urls) else _NO_CERTIFICATES


def _tls() -> ssl.SSLContext:
    """As httpx has it: SSL_CERT_FILE, else SSL_CERT_DIR, else certifi's. Raises InvalidEnvironment."""
    setting = _defaults.certificates()
    if setting is None:
        return httpx.create_ssl_context(trust_env=False)
    try:
        if setting.variable == "SSL_CERT_DIR":
            os.listdir(setting.value)  # OpenSSL does not say that a folder is not there
            return ssl.create_default_context(capath=setting.value)
        return ssl.create_default_context(cafile=setting.value)
    except OSError as error:  # ssl.SSLError is one
        why = error.strerror if not isinstance(error, ssl.SSLError) and error.strerror else "there is no certificate"
        raise InvalidEnvironment(
            f"{setting.shown}: {why}; name a file of certificates in PEM, or unset {setting.variable}"
        ) from None
