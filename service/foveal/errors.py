"""The error tree: what a caller is told when a request fails.

Every error carries its status, its code and whether another try may succeed. `api` turns any of them
into the same JSON; nothing else decides a status. The text of `message` is shown to callers: it says what
to do and nothing of the server's inside.
"""

from __future__ import annotations

import copy
from typing import ClassVar, Self


class FovealError(Exception):
    """A refusal or a failure that a caller is told of. Raised anywhere on the path of a request.

    Raised as itself it is `internal`: a bug or a GPU fault, never for anything that the caller sent.
    """

    status: ClassVar[int] = 500
    code: ClassVar[str] = "internal"
    type: ClassVar[str] = "server_error"
    retryable: bool = False

    def __init__(self, message: str, *, param: str | None = None, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after = retry_after

    def at(self, param: str) -> Self:
        """A copy that names the part of *this* caller's request; callers may share one failed encode."""
        twin = copy.copy(self)
        twin.param = param
        return twin


class InvalidRequest(FovealError):
    """Malformed body, unknown option, bad value, no image. Raised while a request is read."""

    status, code, type = 400, "invalid_request", "invalid_request_error"


class BadBase64(InvalidRequest):
    """Base64 or a data-URI that is not. Raised while a request is read."""

    code = "bad_base64"


class Unauthorized(InvalidRequest):
    """Key missing or wrong. Raised before a body is read."""

    status, code = 401, "unauthorized"


class UrlForbidden(InvalidRequest):
    """Scheme, host or address that may not be fetched. Raised before anything connects."""

    status, code = 403, "url_forbidden"


class ModelNotFound(InvalidRequest):
    """A model that is not the one served. Raised while a request is read."""

    status, code = 404, "model_not_found"


class NotFound(InvalidRequest):
    """No such route."""

    status, code = 404, "not_found"


class MethodNotAllowed(InvalidRequest):
    """The route exists for another method."""

    status, code = 405, "method_not_allowed"


class TooLarge(InvalidRequest):
    """Bytes, pixels, images or tokens over a limit; the message names the limit and its setting."""

    status, code = 413, "too_large"


class UnsupportedType(InvalidRequest):
    """Bytes that are no supported image format. Raised by a prep process."""

    status, code = 415, "unsupported_type"


class Undecodable(InvalidRequest):
    """An empty, truncated or damaged image. Raised by a prep process."""

    status, code = 422, "undecodable"


class AspectRatio(InvalidRequest):
    """A shape that the model's resize rule refuses. Raised when the grid is planned."""

    status, code = 422, "aspect_ratio"


class DtypeOverflow(InvalidRequest):
    """Values that the dtype asked for cannot hold. Raised for whoever chose that dtype; for others it is `internal`."""

    status, code = 422, "dtype_overflow"


class UrlFailed(FovealError):
    """A fetch that failed, timed out, or was answered with an error. Not `retryable` where a retry fails the same."""

    status, code, type, retryable = 424, "url_failed", "invalid_request_error", True

    def __init__(self, message: str, *, retryable: bool = True, param: str | None = None) -> None:
        super().__init__(message, param=param)
        self.retryable = retryable


class RateLimited(FovealError):
    """One key's own quota is used up."""

    status, code, type, retryable = 429, "rate_limited", "overloaded_error", True


class Overloaded(FovealError):
    """Admission is full. Carries `retry_after` in seconds."""

    status, code, type, retryable = 503, "overloaded", "overloaded_error", True


class Draining(FovealError):
    """The server is shutting down; another instance may answer."""

    status, code, type, retryable = 503, "draining", "overloaded_error", True


class Unavailable(FovealError):
    """No worker can take the item, or the item was lost with its worker twice."""

    status, code, type, retryable = 503, "unavailable", "server_error", True


class DeadlineExceeded(FovealError):
    """The caller's deadline passed before its answer was ready."""

    status, code, type, retryable = 504, "deadline_exceeded", "server_error", True


class ConfigurationError(Exception):
    """Settings or a checkpoint that cannot be served; the text says what to change. Only raised at start."""


def _tree(root: type[FovealError]) -> list[type[FovealError]]:
    return [root, *(leaf for child in root.__subclasses__() for leaf in _tree(child))]


BY_CODE: dict[str, type[FovealError]] = {e.code: e for e in _tree(FovealError)}


def error_of(code: str, message: str) -> FovealError:
    """The error that a child process named by its code; an unknown code is a bug and becomes `internal`."""
    return BY_CODE.get(code, FovealError)(message)
