"""API keys: compared in constant time, never logged."""

from __future__ import annotations

import hmac

from starlette.requests import HTTPConnection

from foveal.errors import Unauthorized


def require_key(connection: HTTPConnection, keys: tuple[str, ...]) -> None:
    """Let the request pass if no keys are set or it carries one; raises Unauthorized."""
    if not keys:
        return
    scheme, _, sent = connection.headers.get("authorization", "").partition(" ")
    given = sent.strip().encode("latin-1", "replace")
    # every key is compared, so that the time says nothing about which was nearly right
    matches = [hmac.compare_digest(given, key.encode()) for key in keys]
    if scheme.lower() != "bearer" or not any(matches):
        raise Unauthorized("send a valid key as 'Authorization: Bearer KEY'")
