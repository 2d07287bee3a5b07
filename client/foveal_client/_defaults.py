"""Defaults of both clients, and the two variables they read. Nothing else of the SDK looks at the environment."""

from __future__ import annotations

import os

import httpx

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
