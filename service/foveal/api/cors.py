"""Browsers: pages of other origins may call where `--cors-origin` names them. Off by default."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

EXPOSED = ("X-Request-ID", "Server-Timing", "Retry-After")
"""Headers of answers that a page may read, beside those that it always may."""
PREFLIGHT_SECONDS = 600


def with_cors(app: ASGIApp, origins: Sequence[str]) -> ASGIApp:
    """The application for pages of these origins; itself where there are none.

    Must be around everything that answers, so that a page can read errors too. A browser asks first whether it may
    (preflight), without a key; that is answered here. Keys come in a header, so no cookie is ever let through.
    """
    if not origins:
        return app
    return CORSMiddleware(
        app,
        allow_origins=origins,
        allow_methods=("*",),
        allow_headers=("*",),
        expose_headers=EXPOSED,
        max_age=PREFLIGHT_SECONDS,
    )
