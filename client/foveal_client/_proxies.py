"""Which proxy leads to a server, out of the variables that programs agree on. Pure; nothing is connected here.

A proxy is never asked for this machine itself, whatever the variables say: it could not reach it, and would see keys.
"""

from __future__ import annotations

import importlib.util
import ipaddress
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field

import httpx

from foveal_client._errors import InvalidEnvironment

_SCHEMES = ("http", "https", "socks5", "socks5h")
_LOCAL_NAMES = frozenset({"localhost", "localhost.localdomain", "localhost6", "ip6-localhost", "ip6-loopback"})
_CREDENTIALS = re.compile(r"^([^/@]*://)?.*@", re.DOTALL)
_SHOWN_CHARACTERS = 120


@dataclass(frozen=True)
class Setting:
    """A value of the environment, and the variable that it stands in."""

    variable: str
    value: str = field(repr=False)
    """May hold a password."""

    @property
    def shown(self) -> str:
        """As it may be told: without credentials."""
        return f"{self.variable}={_masked(self.value)}"


@dataclass(frozen=True)
class Proxy:
    """A proxy that can be used."""

    setting: Setting
    url: httpx.URL = field(repr=False)

    @property
    def shown(self) -> str:
        """As it may be told."""
        return f"the proxy {_masked(str(self.url))} of {self.setting.variable}"


def proxy_for(url: str, proxies: Mapping[str, Setting], no_proxy: Setting | None) -> Proxy | None:
    """The proxy for a server; None for this machine, and for what NO_PROXY names. Raises InvalidEnvironment.

    `proxies` are by scheme of the server's URL: http, https, all.
    """
    asked = httpx.URL(url)
    setting = proxies.get(asked.scheme) or proxies.get("all")
    host = asked.raw_host.decode("ascii")
    if setting is None or is_this_machine(host):
        return None
    if no_proxy is not None and _is_exempt(host, asked.port or {"http": 80, "https": 443}[asked.scheme], no_proxy):
        return None
    return Proxy(setting, _checked(setting))


def is_this_machine(host: str) -> bool:
    """True for every spelling of loopback, and for the address of nobody, which leads there. Looks up no name."""
    name = host.strip("[]").rstrip(".").lower()
    if name in _LOCAL_NAMES or name.endswith(".localhost"):
        return True
    address = _address(name)
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return address is not None and (address.is_loopback or address.is_unspecified)


def has_host(url: httpx.URL) -> bool:
    """True when there is a host, and not something that only escaping made one: `[bad`."""
    host = url.raw_host
    return b":" in host or (bool(host) and b"%" not in host)


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        pass
    if not re.fullmatch(r"[0-9a-fx.]+", name) or not name[0].isdigit():
        return None
    try:  # 127.1, 0x7f000001: what connects takes these for addresses too
        return ipaddress.IPv4Address(socket.inet_aton(name))
    except OSError:
        return None


def _is_exempt(host: str, port: int, no_proxy: Setting) -> bool:
    """True when NO_PROXY has the host: a name and all below it, an address, a network, each with a port or without."""
    entries = [entry for entry in re.split(r"[,\s]+", no_proxy.value.lower()) if entry]
    return any(_covers(entry.rpartition("://")[2], host.lower().rstrip("."), port, no_proxy) for entry in entries)


def _covers(entry: str, host: str, port: int, no_proxy: Setting) -> bool:
    if entry == "*":
        return True
    with_port = re.fullmatch(r"(\[[^\]]*\]|[^:\[\]]+):(\d+)", entry)
    if with_port is not None:
        if int(with_port[2]) != port:
            return False
        entry = with_port[1]
    entry = entry.replace("[", "").replace("]", "")
    address = _address(host)
    if "/" in entry or _address(entry) is not None:
        try:
            return address is not None and address in ipaddress.ip_network(entry, strict=False)
        except ValueError:
            raise InvalidEnvironment(
                f"{no_proxy.variable} has {entry[:_SHOWN_CHARACTERS]!r}, which is no network; write 10.0.0.0/8, say"
            ) from None
    name = entry.removeprefix("*").strip(".")
    return bool(name) and (host == name or host.endswith(f".{name}"))


def _checked(setting: Setting) -> httpx.URL:
    """The proxy's URL. Raises InvalidEnvironment for one that cannot be used."""
    text = setting.value.strip()
    try:
        url = httpx.URL(text if "://" in text else f"http://{text}")
    except (httpx.InvalidURL, ValueError):
        url = httpx.URL()
    if not has_host(url):
        raise InvalidEnvironment(f"{setting.shown} is no URL of a proxy; correct or unset {setting.variable}")
    if url.scheme not in _SCHEMES:
        kinds = f"{', '.join(_SCHEMES[:-1])} or {_SCHEMES[-1]}"
        raise InvalidEnvironment(
            f"{setting.shown} names no proxy of a known kind ({kinds}); correct or unset {setting.variable}"
        )
    if url.scheme.startswith("socks") and importlib.util.find_spec("socksio") is None:
        raise InvalidEnvironment(
            f"{setting.shown} needs the package socksio: pip install 'httpx[socks]', or unset {setting.variable}"
        )
    return url


def _masked(text: str) -> str:
    """Without user name and password, also where it is no URL."""
    return _CREDENTIALS.sub(lambda found: f"{found[1] or ''}***@", text)[:_SHOWN_CHARACTERS]
