"""What came over HTTP: an answer's head and body, and the error that a refusal or a broken connection becomes."""

from __future__ import annotations

import json
import math
import socket
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

import httpx

from foveal_client._errors import (
    BY_CODE,
    APIStatusError,
    ConnectionFailed,
    ConnectionLost,
    ConnectTimeout,
    DeadlineExceeded,
    InternalError,
    InvalidRequest,
    InvalidResponse,
    MethodNotAllowed,
    NotFound,
    RateLimited,
    ServerDeadlineExceeded,
    TooLarge,
    Unauthorized,
    Unavailable,
    UnsupportedType,
)
from foveal_client._http import PROXY

# For answers without a code that we know: a proxy's, or a newer server's. Statuses with two codes stay general.
_BY_STATUS: dict[int, type[APIStatusError]] = {
    kind.status: kind
    for kind in (
        InvalidRequest,
        Unauthorized,
        NotFound,
        MethodNotAllowed,
        TooLarge,
        UnsupportedType,
        RateLimited,
        Unavailable,
        ServerDeadlineExceeded,
        InternalError,
    )
}
_SHOWN_CHARACTERS = 200


@dataclass(frozen=True)
class Answer:
    """One complete HTTP answer. The body is a buffer of our own, so arrays on it are writable."""

    status: int
    headers: Mapping[str, str]
    """Looked up without regard to case."""
    body: bytearray
    proxy: str | None = None
    """What it came through, which may have answered by itself."""

    @classmethod
    def of(cls, response: httpx.Response, body: bytearray) -> Answer:
        """What came, with its body."""
        return cls(response.status_code, response.headers, body, response.extensions.get(PROXY))

    @property
    def request_id(self) -> str | None:
        """The server's name for the request, for its logs."""
        return self.headers.get("x-request-id")

    @property
    def media_type(self) -> str:
        """Content-Type without its parameters, in lower case."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()


def check_status(answer: Answer) -> Answer:
    """The answer itself when it is a 200; otherwise raise the class of its code, or of its status."""
    if answer.status == 200:
        return answer
    raise error_from(answer)


def error_from(answer: Answer) -> APIStatusError:
    """The error that a refusal stands for. Its code decides the class, then its status, then nothing."""
    told = _error_object(answer.body)
    code, retryable = _text(told, "code"), told.get("retryable")
    kind = BY_CODE.get(code or "") or _BY_STATUS.get(answer.status, APIStatusError)
    return kind(
        _text(told, "message") or _without_body(answer),
        status=answer.status,
        code=code,
        param=_text(told, "param"),
        retryable=retryable if isinstance(retryable, bool) else None,
        request_id=_text(told, "request_id") or answer.request_id,
        retry_after=parse_retry_after(answer.headers.get("retry-after"), datetime.now(UTC)),
        body=bytes(answer.body),
    )


def parse_retry_after(value: str | None, now: datetime) -> float | None:
    """Seconds from a Retry-After header: a number or an HTTP date. None for what is neither; never negative."""
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            then = parsedate_to_datetime(value)
        except ValueError:
            return None
        seconds = (then.replace(tzinfo=then.tzinfo or UTC) - now).total_seconds()
    return max(0.0, seconds) if math.isfinite(seconds) else None


def parse_json(answer: Answer) -> dict[str, object]:
    """The JSON object of a 200; raises InvalidResponse for anything else."""
    try:
        found: object = json.loads(answer.body)
    except (ValueError, RecursionError) as error:
        raise InvalidResponse(f"expected JSON, got {answer.media_type or 'a body without a type'}: {error}") from error
    if not isinstance(found, dict):
        raise InvalidResponse(f"expected a JSON object, got a {type(found).__name__}")
    return found


@contextmanager
def mapped_errors(url: str, *, answering: bool = False) -> Iterator[None]:
    """Turn httpx's exceptions into ours, most specific first. `answering`: the head of an answer is already here."""
    try:
        yield
    except httpx.ConnectTimeout as error:
        raise ConnectTimeout(f"no connection to {url} in time{_why(error)}") from error
    except httpx.TimeoutException as error:
        raise DeadlineExceeded(f"{url} did not finish within the timeout{_why(error)}") from error
    except httpx.ConnectError as error:
        raise ConnectionFailed(f"cannot connect to {url}: {error}", retryable=_may_pass(error)) from error
    except (httpx.NetworkError, httpx.RemoteProtocolError) as error:
        text = f"the connection to {url} broke: {error or type(error).__name__}"
        raise ConnectionLost(text, retryable=not answering) from error
    except httpx.DecodingError as error:
        raise InvalidResponse(f"{url} sent a body that does not match its Content-Encoding: {error}") from error
    except httpx.HTTPError as error:
        raise ConnectionFailed(f"cannot talk to {url}: {error}") from error


def _why(error: Exception) -> str:
    return f" ({error or type(error).__name__})"


def _may_pass(error: BaseException | None) -> bool:
    """Refused or unreachable may pass; a name that does not resolve or a bad certificate will not within seconds."""
    while error is not None:
        if isinstance(error, (socket.gaierror, ssl.SSLError)):
            return False
        error = error.__cause__ or error.__context__
    return True


def _error_object(body: bytearray) -> dict[str, object]:
    """`error` of the body; empty when the body is somebody else's."""
    try:
        found = json.loads(body)["error"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _text(told: Mapping[str, object], key: str) -> str | None:
    value = told.get(key)
    return value if isinstance(value, str) and value else None


def _without_body(answer: Answer) -> str:
    """What to say when the answer has no error of the server's form."""
    start = bytes(answer.body[:_SHOWN_CHARACTERS]).decode("utf-8", "replace").strip()
    by = f"answered through {answer.proxy}" if answer.proxy else "answered"
    return f"{by} without foveal's error body: {start}" if start else f"{by} without a body"
