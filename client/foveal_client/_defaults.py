"""Defaults of both clients, and the variables they read. Nothing else of the SDK looks at the environment."""

from __future__ import annotations

import os
import urllib.request

import httpx

from foveal_client._proxies import Setting

URL = "http://127.0.0.1:8000"
TIMEOUT_SECONDS = 60.0
"""Total for one call, retries and waits included."""
CONNECT_SECONDS = 5.0
"""A host that does not answer a connection attempt by then is not going to."""
MAX_RETRIES = 2
PROBE_SECONDS = 5.0
"""How long `is_ready` waits before it says no."""
LIMITS = httpx.Limits(
    max_connections=100,
    max_keepalive_connections=20,
    # Shorter than the server's 75 s, so that an idle connection is closed here first and not under a request.
    keepalive_expiry=30.0,
)


def from_environment() -> tuple[str | None, str | None]:
    """`FOVEAL_URL` and `FOVEAL_API_KEY`; None where a variable is unset or empty."""
    return os.environ.get("FOVEAL_URL") or None, os.environ.get("FOVEAL_API_KEY") or None


def proxies() -> tuple[dict[str, Setting], Setting | None]:
    """Proxies by scheme (http, https, all), and what NO_PROXY holds. Lower case wins, as everywhere.

    Where a system keeps proxies elsewhere than in variables, those are used when no variable is set.
    """
    found = urllib.request.getproxies()
    given = {scheme: _setting(scheme, found[scheme]) for scheme in ("http", "https", "all") if found.get(scheme)}
    return given, _setting("no", found["no"]) if found.get("no") else None


def certificates() -> Setting | None:
    """`SSL_CERT_FILE`, else `SSL_CERT_DIR`."""
    names = ("SSL_CERT_FILE", "SSL_CERT_DIR")
    return next((Setting(name, os.environ[name]) for name in names if os.environ.get(name)), None)


def _setting(scheme: str, value: str) -> Setting:
    names = (f"{scheme}_proxy", f"{scheme}_proxy".upper())
    return Setting(next((name for name in names if os.environ.get(name) == value), "the system's settings"), value)
