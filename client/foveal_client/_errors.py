"""The errors of the SDK, and how an HTTP answer becomes one of them.

FovealError
├── ConnectionFailed              no answer: refused, reset, name unknown, TLS
│   ├── ConnectTimeout            nobody accepted the connection in time
│   └── ConnectionLost            a connection that broke before or while the server answered
├── DeadlineExceeded              the call's total timeout passed, here or on the server
│   └── ServerDeadlineExceeded    504 deadline_exceeded (an APIStatusError too)
├── InvalidEnvironment            a proxy or certificates of the environment that cannot be used (a ValueError too)
├── InvalidResponse               an answer that does not keep to the format
└── APIStatusError                the server said no; one class per code:
    ├── InvalidRequest            400 invalid_request, and parent of what only the caller can mend
    │   ├── BadBase64             400 bad_base64
    │   ├── Unauthorized          401 unauthorized
    │   ├── UrlForbidden          403 url_forbidden
    │   ├── ModelNotFound         404 model_not_found
    │   ├── NotFound              404 not_found
    │   ├── MethodNotAllowed      405 method_not_allowed
    │   ├── TooLarge              413 too_large
    │   ├── UnsupportedType       415 unsupported_type
    │   ├── Undecodable           422 undecodable
    │   ├── AspectRatio           422 aspect_ratio
    │   └── DtypeOverflow         422 dtype_overflow
    ├── UrlFailed                 424 url_failed
    ├── RateLimited               429 rate_limited
    ├── Overloaded                503 overloaded
    ├── Draining                  503 draining
    ├── Unavailable               503 unavailable
    └── InternalError             500 internal

A picture that cannot even be sent is a TypeError, ValueError or OSError of Python's own.
"""

from __future__ import annotations

from typing import ClassVar


class FovealError(Exception):
    """Parent of every error that the SDK raises by itself. Callers may catch it alone."""

    retryable: bool = False
    """True when the same call may succeed later."""


class InvalidEnvironment(FovealError, ValueError):
    """A variable such as HTTPS_PROXY or SSL_CERT_FILE that cannot be used; raised when a client is made."""


class ConnectionFailed(FovealError):
    """No connection to the server, or none that lived until an answer was there."""

    def __init__(self, message: str, *, retryable: bool = False) -> None:
        super().__init__(message)
        self.retryable = retryable


class ConnectTimeout(ConnectionFailed):
    """Nobody accepted the connection in time: wrong host, or a firewall that drops packets."""


class ConnectionLost(ConnectionFailed):
    """A connection that broke. `retryable` while no part of an answer had arrived: encoding has no side effect."""


class DeadlineExceeded(FovealError):
    """The call's total timeout passed, retries and waits included. Raised here, or for the server's 504."""

    retryable = True


class InvalidResponse(FovealError):
    """An answer that does not keep to the format; the text names what was expected and what came."""


class APIStatusError(FovealError):
    """The server answered with an error. Raised as itself for a status and code that this SDK does not know."""

    status: int = 0
    """HTTP status of the answer."""
    code: str = "unknown"
    """The server's word for it; stable, meant for branching."""
    default_retryable: ClassVar[bool] = False

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        code: str | None = None,
        param: str | None = None,
        retryable: bool | None = None,
        request_id: str | None = None,
        retry_after: float | None = None,
        body: bytes = b"",
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = self.status if status is None else status
        self.code = self.code if code is None else code
        self.param = param
        """The part of the request at fault, such as `images[1]`; None when it is the whole."""
        self.retryable = self.default_retryable if retryable is None else retryable
        self.request_id = request_id
        self.retry_after = retry_after
        """Seconds that the server asks to wait; None when it did not say."""
        self.body = body
        """The answer's body as it came."""

    def __str__(self) -> str:
        where = f" ({self.param})" if self.param else ""
        trace = f" [request {self.request_id}]" if self.request_id else ""
        return f"{self.status} {self.code}{where}: {self.message}{trace}"


class InvalidRequest(APIStatusError):
    """Unknown option, bad value, no image; and parent of every error that only the caller can mend."""

    status, code = 400, "invalid_request"


class BadBase64(InvalidRequest):
    """Base64 or a data-URI that is not."""

    code = "bad_base64"


class Unauthorized(InvalidRequest):
    """Key missing or wrong."""

    status, code = 401, "unauthorized"


class UrlForbidden(InvalidRequest):
    """A URL whose scheme, host or address the server may not fetch."""

    status, code = 403, "url_forbidden"


class ModelNotFound(InvalidRequest):
    """A model that is not the one served."""

    status, code = 404, "model_not_found"


class NotFound(InvalidRequest):
    """No such route: most likely `base_url` has a path too many, or is not a foveal server."""

    status, code = 404, "not_found"


class MethodNotAllowed(InvalidRequest):
    """The route exists for another method."""

    status, code = 405, "method_not_allowed"


class TooLarge(InvalidRequest):
    """Bytes, pixels, images or tokens over a limit; the message names the limit and its setting."""

    status, code = 413, "too_large"


class UnsupportedType(InvalidRequest):
    """Bytes that are no supported image format."""

    status, code = 415, "unsupported_type"


class Undecodable(InvalidRequest):
    """An empty, truncated or damaged image."""

    status, code = 422, "undecodable"


class AspectRatio(InvalidRequest):
    """A shape that the model's resize rule refuses."""

    status, code = 422, "aspect_ratio"


class DtypeOverflow(InvalidRequest):
    """Values that the dtype asked for cannot hold: ask for a wider one."""

    status, code = 422, "dtype_overflow"


class UrlFailed(APIStatusError):
    """The server could not fetch a URL. Not retried here: the other host is the one that must recover."""

    status, code, default_retryable = 424, "url_failed", True


class RateLimited(APIStatusError):
    """This key's own quota is used up."""

    status, code, default_retryable = 429, "rate_limited", True


class Overloaded(APIStatusError):
    """The server is full; `retry_after` says for how long."""

    status, code, default_retryable = 503, "overloaded", True


class Draining(APIStatusError):
    """This server is shutting down; another instance may answer."""

    status, code, default_retryable = 503, "draining", True


class Unavailable(APIStatusError):
    """No worker could take the image."""

    status, code, default_retryable = 503, "unavailable", True


class ServerDeadlineExceeded(APIStatusError, DeadlineExceeded):
    """The server noticed first that the deadline had passed."""

    status, code, default_retryable = 504, "deadline_exceeded", True


class InternalError(APIStatusError):
    """A bug or a fault on the server; report the request id."""

    status, code = 500, "internal"


def _tree(root: type[APIStatusError]) -> list[type[APIStatusError]]:
    return [leaf for child in root.__subclasses__() for leaf in (child, *_tree(child))]


BY_CODE: dict[str, type[APIStatusError]] = {kind.code: kind for kind in _tree(APIStatusError)}
