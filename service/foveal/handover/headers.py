"""Which headers pass between a caller and an LLM server. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Header = tuple[bytes, bytes]

HOP_BY_HOP = frozenset(
    {
        b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection", b"te",
        b"trailer", b"transfer-encoding", b"upgrade", b"http2-settings",
    }
)  # fmt: skip
"""They speak of one connection (RFC 9110, 7.6.1); so do those that `Connection` names."""
_OURS_TO_SEND = frozenset({b"host", b"content-length", b"expect", b"x-request-id"})
_OURS_TO_ANSWER = frozenset({b"x-request-id", b"date"})
"""Written by this server: the id is the one that the LLM server was sent."""


def to_llm(headers: Iterable[Header], request_id: str, api_key: str | None, passes_authorization: bool) -> list[Header]:
    """A request's headers for the LLM server. Its key is `api_key`, else the caller's own where that may pass."""
    passed = _without(headers, _OURS_TO_SEND)
    if api_key is not None or not passes_authorization:
        passed = [(name, value) for name, value in passed if name.lower() != b"authorization"]
    if api_key is not None:
        passed.append((b"Authorization", b"Bearer " + api_key.encode()))
    return [*passed, (b"X-Request-ID", request_id.encode())]


def to_caller(headers: Iterable[Header], with_cors: bool = True) -> list[Header]:
    """An answer's headers for the caller, as an ASGI server wants them; without those that say which web pages may
    read it where this server says so itself.
    """
    passed = [(name.lower(), value) for name, value in _without(headers, _OURS_TO_ANSWER)]
    return passed if with_cors else [header for header in passed if not header[0].startswith(b"access-control-")]


def _without(headers: Iterable[Header], more: frozenset[bytes]) -> list[Header]:
    all_ = list(headers)
    dropped = HOP_BY_HOP | more | _named_by_connection(all_)
    return [(name, value) for name, value in all_ if name.lower() not in dropped]


def _named_by_connection(headers: Sequence[Header]) -> frozenset[bytes]:
    values = [value for name, value in headers if name.lower() == b"connection"]
    return frozenset(word.strip().lower() for value in values for word in value.split(b","))
