"""Base64 and data-URIs as people send them: white space and both alphabets are fine, foreign symbols are not."""

from __future__ import annotations

import binascii
import re
from urllib.parse import unquote_to_bytes

import pybase64

from foveal.errors import BadBase64

_SPACE = re.compile(rb"[\t\n\r\f ]+")
_HOW = "send standard or url-safe base64 of the image file, with or without padding"


def image_of_text(text: str) -> bytes:
    """The bytes behind a base64 string or a `data:` URI; raises BadBase64."""
    if text[:5].lower() == "data:":
        return _image_of_data_uri(text)
    return decode(_ascii(text))


def decode(text: bytes) -> bytes:
    """Strict base64 after white space is taken out; raises BadBase64."""
    packed = _SPACE.sub(b"", text).translate(bytes.maketrans(b"-_", b"+/")).rstrip(b"=")
    if not packed:
        raise BadBase64("the base64 text is empty; " + _HOW)
    if len(packed) % 4 == 1:
        raise BadBase64(f"{len(packed)} symbols are no whole number of bytes: the base64 text is cut off; " + _HOW)
    try:
        return pybase64.b64decode(packed + b"=" * (-len(packed) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise BadBase64("the text holds symbols that are not base64; " + _HOW) from None


def _image_of_data_uri(text: str) -> bytes:
    head, comma, body = text[5:].partition(",")
    if not comma:
        raise BadBase64("the data-URI has no comma; send data:image/png;base64,...")
    if not head.lower().replace(" ", "").endswith(";base64"):
        raise BadBase64("the data-URI is not base64; send data:image/png;base64,...")
    raw = _ascii(body)
    return decode(unquote_to_bytes(raw) if b"%" in raw else raw)


def _ascii(text: str) -> bytes:
    try:
        return text.encode("ascii")
    except UnicodeEncodeError:
        raise BadBase64("the text holds symbols that are not base64; " + _HOW) from None
