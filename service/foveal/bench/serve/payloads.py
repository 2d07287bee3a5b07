"""One request as bytes: raw, multipart or JSON with base64, ready for a socket."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import urlencode, urlsplit

from foveal.errors import ConfigurationError

Payload = Literal["raw", "multipart", "json"]
BOUNDARY = b"foveal-bench-boundary"
CONTENT_TYPES: dict[str, str] = {
    "raw": "application/octet-stream",
    "multipart": f"multipart/form-data; boundary={BOUNDARY.decode()}",
    "json": "application/json",
}
ACCEPTS = {"safetensors": "application/vnd.foveal.safetensors", "json": "application/json"}


@dataclass(frozen=True)
class Target:
    """Where requests go and what they ask for."""

    url: str
    payload: Payload = "raw"
    answer: str = "safetensors"
    options: dict[str, str] = field(default_factory=dict)
    api_key: str | None = None
    timeout_seconds: float = 30.0

    @property
    def is_tls(self) -> bool:
        """True for https."""
        return urlsplit(self.url).scheme == "https"

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        parts = urlsplit(self.url)
        return parts.hostname or "", parts.port or (443 if self.is_tls else 80)

    def check(self) -> None:
        """Raises ConfigurationError when the URL names no http(s) host."""
        try:
            is_good = urlsplit(self.url).scheme in ("http", "https") and bool(self.address[0])
        except ValueError:
            is_good = False
        if not is_good:
            raise ConfigurationError(f"--url {self.url}: say http://HOST:PORT or https://HOST:PORT")


class Composer:
    """Writes requests; what is the same in all of them is written once."""

    def __init__(self, target: Target) -> None:
        parts = urlsplit(target.url)
        query = "?" + urlencode(target.options) if target.options else ""
        lines = [
            f"POST {parts.path.rstrip('/')}/encode{query} HTTP/1.1",
            f"Host: {parts.netloc.rpartition('@')[2]}",
            f"Content-Type: {CONTENT_TYPES[target.payload]}",
            f"Accept: {ACCEPTS[target.answer]}",
            f"X-Request-Timeout-Ms: {max(1, round(target.timeout_seconds * 1000))}",
        ]
        if target.api_key:
            lines.append(f"Authorization: Bearer {target.api_key}")
        self._head = "\r\n".join([*lines, "Content-Length: "]).encode("latin-1")
        self._payload = target.payload

    def compose(self, images: Sequence[bytes]) -> bytes:
        """The whole request."""
        body = self._body(images)
        return b"".join((self._head, b"%d" % len(body), b"\r\n\r\n", body))

    def _body(self, images: Sequence[bytes]) -> bytes:
        match self._payload:
            case "raw":
                (image,) = images
                return image
            case "multipart":
                return _multipart(images)
            case "json":
                texts = b",".join(b'"' + base64.b64encode(image) + b'"' for image in images)
                return b'{"images":[' + texts + b"]}"


def _multipart(images: Sequence[bytes]) -> bytes:
    pieces: list[bytes] = []
    for i, image in enumerate(images):
        pieces.append(b'--%s\r\nContent-Disposition: form-data; name="image"; filename="%d"\r\n' % (BOUNDARY, i))
        pieces += [b"Content-Type: application/octet-stream\r\n\r\n", image, b"\r\n"]
    return b"".join([*pieces, b"--%s--\r\n" % BOUNDARY])
