"""What callers catch: the tree, and how answers and exceptions of httpx become its classes."""

from __future__ import annotations

import socket
import ssl

import httpx
import pytest

from foveal_client import _errors as e
from foveal_client._answers import Answer, error_from, mapped_errors


def refusal(status: int, body: bytes = b"", **headers: str) -> e.APIStatusError:
    return error_from(Answer(status, httpx.Headers(headers), bytearray(body)))


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, e.InvalidRequest),
        (401, e.Unauthorized),
        (403, e.APIStatusError),
        (404, e.NotFound),
        (413, e.TooLarge),
        (422, e.APIStatusError),
        (429, e.RateLimited),
        (500, e.InternalError),
        (502, e.APIStatusError),
        (503, e.Unavailable),
        (504, e.ServerDeadlineExceeded),
        (307, e.APIStatusError),
    ],
)
@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b'{"error": "text"}', b'{"error": {"code": "new_one"}}'])
def test_an_unknown_code_falls_back_on_the_status(status: int, kind: type[e.APIStatusError], body: bytes) -> None:
    error = refusal(status, body)
    assert type(error) is kind
    assert (error.status, error.body) == (status, body)


def test_the_code_decides_before_the_status() -> None:
    assert type(refusal(599, b'{"error": {"code": "undecodable", "message": "x"}}')) is e.Undecodable


def test_a_code_from_a_newer_server_is_kept() -> None:
    assert refusal(418, b'{"error": {"code": "teapot", "message": "short and stout"}}').code == "teapot"


def test_the_body_says_whether_to_retry_else_the_code_does() -> None:
    assert refusal(503, b'{"error": {"code": "unavailable", "retryable": false}}').retryable is False
    assert refusal(503).retryable is True
    assert refusal(502).retryable is False


def test_the_text_names_status_code_param_and_request() -> None:
    body = b'{"error": {"code": "undecodable", "message": "truncated", "param": "images[1]", "request_id": "r"}}'
    assert str(refusal(422, body)) == "422 undecodable (images[1]): truncated [request r]"


def test_a_foreign_body_is_shown_in_part() -> None:
    error = refusal(502, b"<html>Bad Gateway" + b"x" * 5000, **{"x-request-id": "r-9"})
    assert "Bad Gateway" in str(error) and len(str(error)) < 400
    assert error.request_id == "r-9"


def test_a_servers_deadline_is_caught_like_our_own() -> None:
    with pytest.raises(e.DeadlineExceeded):
        raise refusal(504, b'{"error": {"code": "deadline_exceeded", "message": "late"}}')


def test_whatever_only_the_caller_can_mend_is_an_invalid_request() -> None:
    mendable = {code for code, kind in e.BY_CODE.items() if issubclass(kind, e.InvalidRequest)}
    assert mendable == {code for code, kind in e.BY_CODE.items() if not kind.default_retryable} - {"internal"}


@pytest.mark.parametrize(
    ("raised", "kind", "retryable"),
    [
        (httpx.ConnectTimeout("t"), e.ConnectTimeout, False),
        (httpx.ReadTimeout("t"), e.DeadlineExceeded, True),
        (httpx.WriteTimeout("t"), e.DeadlineExceeded, True),
        (httpx.PoolTimeout("t"), e.DeadlineExceeded, True),
        (httpx.ConnectError("refused"), e.ConnectionFailed, True),
        (httpx.ReadError("reset"), e.ConnectionLost, True),
        (httpx.WriteError("reset"), e.ConnectionLost, True),
        (httpx.RemoteProtocolError("disconnected"), e.ConnectionLost, True),
        (httpx.DecodingError("bad gzip"), e.InvalidResponse, False),
        (httpx.ProxyError("proxy"), e.ConnectionFailed, False),
        (httpx.UnsupportedProtocol("ftp"), e.ConnectionFailed, False),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
def test_httpx_never_shows_through(raised: Exception, kind: type[e.FovealError], retryable: bool) -> None:
    with pytest.raises(e.FovealError) as caught, mapped_errors("http://host"):
        raise raised
    assert type(caught.value) is kind
    assert caught.value.retryable is retryable
    assert caught.value.__cause__ is raised
    assert kind is e.InvalidResponse or "http://host" in str(caught.value)


@pytest.mark.parametrize("cause", [socket.gaierror("unknown name"), ssl.SSLError("certificate")])
def test_a_name_or_certificate_that_is_wrong_is_not_tried_again(cause: Exception) -> None:
    error = httpx.ConnectError("failed")
    error.__cause__ = cause
    with pytest.raises(e.ConnectionFailed) as caught, mapped_errors("https://host"):
        raise error
    assert caught.value.retryable is False


def test_a_connection_that_breaks_within_an_answer_is_not_tried_again() -> None:
    with pytest.raises(e.ConnectionLost) as caught, mapped_errors("http://host", answering=True):
        raise httpx.RemoteProtocolError("peer closed")
    assert caught.value.retryable is False
