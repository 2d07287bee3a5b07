"""API keys: compared in constant time, never logged; and who a caller is, for shares and quotas."""

from __future__ import annotations

import hmac

from starlette.requests import HTTPConnection

from foveal.errors import Unauthorized


def require_key(connection: HTTPConnection, keys: tuple[str, ...]) -> str:
    """The caller's name if no keys are set or the request carries one; raises Unauthorized.

    With keys it is the key's place among them, else the address: those behind one proxy are then one caller.
    """
    if not keys:
        return connection.client.host if connection.client else ""
    scheme, _, sent = connection.headers.get("authorization", "").partition(" ")
    given = sent.strip().encode("latin-1", "replace")
    # every key is compared, so that the time says nothing about which was nearly right
    matches = [hmac.compare_digest(given, key.encode()) for key in keys]
    if scheme.lower() != "bearer" or not any(matches):
        raise Unauthorized("send a valid key as 'Authorization: Bearer KEY'")
    return f"key-{matches.index(True)}"
