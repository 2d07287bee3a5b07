"""Reads a request's body within its limits: a declared length before it is read, every other as it arrives."""

from __future__ import annotations

from starlette.requests import Request

from foveal.engine.admission import Visit
from foveal.errors import InvalidRequest, TooLarge, UnsupportedType


async def read_body(request: Request, visit: Visit, max_bytes: int) -> bytes:
    """The whole body; raises TooLarge, Overloaded, or starlette's ClientDisconnect.

    Chunks are joined once; a body that came in one chunk is not copied.
    """
    if request.headers.get("content-encoding", "identity").lower() not in ("", "identity"):
        raise UnsupportedType(
            "compressed request bodies are not read; send what it holds as it is, without Content-Encoding"
        )
    declared = _declared_length(request)
    if declared is not None and declared > max_bytes:
        raise _too_large(max_bytes)
    if declared is not None:
        visit.hold_body(declared)
    chunks: list[bytes] = []
    received = 0
    async for chunk in request.stream():
        received += len(chunk)
        if received > max_bytes:
            raise _too_large(max_bytes)
        if declared is None:
            visit.hold_body(len(chunk))
        if chunk:
            chunks.append(chunk)
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def _declared_length(request: Request) -> int | None:
    text = request.headers.get("content-length")
    if text is None:
        return None
    if not text.isascii() or not text.isdigit():
        raise InvalidRequest("Content-Length is no number")
    return int(text)


def _too_large(max_bytes: int) -> TooLarge:
    return TooLarge(f"a request body may have {max_bytes} bytes (--max-body-bytes); send fewer or smaller images")
