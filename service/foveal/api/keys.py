"""API keys: compared in constant time, never logged; and who a caller is, for shares and quotas."""

from __future__ import annotations

import base64
import binascii
import hmac

from starlette.requests import HTTPConnection

from foveal.errors import Unauthorized


def require_key(connection: HTTPConnection, keys: tuple[str, ...], as_password: bool = False) -> str:
    """The caller's name if no keys are set or the request carries one; raises Unauthorized.

    With keys it is the key's place among them, else the address: those behind one proxy are then one caller.
    `as_password` also takes a key as the password of a URL, for callers that can send it in no other way.
    """
    if not keys:
        return connection.client.host if connection.client else ""
    scheme, _, sent = connection.headers.get("authorization", "").partition(" ")
    given = sent.strip().encode("latin-1", "replace")
    if as_password and scheme.lower() == "basic":
        scheme, given = "bearer", _password_of(given)
    # every key is compared, so that the time says nothing about which was nearly right
    matches = [hmac.compare_digest(given, key.encode()) for key in keys]
    if scheme.lower() != "bearer" or not any(matches):
        raise Unauthorized("send a valid key as 'Authorization: Bearer KEY'")
    return f"key-{matches.index(True)}"


def _password_of(credentials: bytes) -> bytes:
    """What stands behind `user:` in the base64 of Basic authentication; nothing where it is none."""
    try:
        return base64.b64decode(credentials, validate=True).partition(b":")[2]
    except binascii.Error:
        return b""
