"""One call as plain data: what to send, until when, how often. Pure; both clients send what is built here."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from foveal_client._images import Source, Url
from foveal_client._types import EncodeOptions
from foveal_client._wire import MEDIA_TYPE

Part = tuple[str, tuple[str, bytes, str]]
"""One file of a multipart body: (field, (file name, bytes, type))."""
_ANY_BYTES = "application/octet-stream"
_MAX_REQUEST_ID = 128
_OPTIONS = EncodeOptions.__optional_keys__


@dataclass(frozen=True)
class Call:
    """A request that can be sent again: every try is built anew from it."""

    method: str
    path: str
    params: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    content: bytes | None = None
    files: Sequence[Part] | None = None


def encode_call(
    sources: Sequence[Source], options: EncodeOptions, request_id: str | None, *, hold: bool = False
) -> Call:
    """POST /encode: one image as a raw body, several as multipart, JSON as soon as one of them is a URL."""
    given = check_options(options)
    if hold:
        given["deliver"] = "hold"
    # Embeddings hardly compress; asking for plain bytes saves both sides the try.
    headers = {"Accept": MEDIA_TYPE, "Accept-Encoding": "identity", **request_id_header(request_id)}
    if any(isinstance(source, Url) for source in sources):
        body = json.dumps({"images": [_json_image(source) for source in sources], **given})
        return Call("POST", "/encode", headers=headers | {"Content-Type": "application/json"}, content=body.encode())
    images = cast(Sequence[bytes], sources)
    params = {name: _text(value) for name, value in given.items()}
    if len(images) == 1:
        return Call("POST", "/encode", params, headers | {"Content-Type": _ANY_BYTES}, content=images[0])
    files = [("images", (f"image-{place}", image, _ANY_BYTES)) for place, image in enumerate(images)]
    return Call("POST", "/encode", params, headers, files=files)


def check_options(options: EncodeOptions) -> dict[str, str | int | bool]:
    """The options that were given. Raises TypeError for a name that is none; values are the server's to judge."""
    if unknown := sorted(set(options) - _OPTIONS):
        raise TypeError(f"encode() has no option {', '.join(unknown)}; it has {', '.join(sorted(_OPTIONS))}")
    return {name: cast("str | int | bool", value) for name, value in options.items() if value is not None}


def request_id_header(request_id: str | None) -> dict[str, str]:
    """X-Request-ID when there is one. Raises ValueError for what cannot stand in a header."""
    if request_id is None:
        return {}
    if not (request_id.isascii() and request_id.isprintable() and 0 < len(request_id) <= _MAX_REQUEST_ID):
        raise ValueError(f"request_id must be 1 to {_MAX_REQUEST_ID} printable ASCII characters")
    return {"X-Request-ID": request_id}


def timeout_header(seconds_left: float) -> dict[str, str]:
    """X-Request-Timeout-Ms: what the server may still use, rounded down so that it gives up first."""
    return {"X-Request-Timeout-Ms": str(max(1, math.floor(seconds_left * 1000)))}


def _json_image(source: Source) -> dict[str, str]:
    if isinstance(source, Url):
        return {"url": source.address}
    return {"data": base64.b64encode(source).decode("ascii")}


def _text(value: str | int | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
