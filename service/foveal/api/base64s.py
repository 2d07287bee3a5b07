"""Base64 and data-URIs as people send them: white space and both alphabets are fine, foreign symbols are not.

Every step is one pass of a C function over the whole text, since bodies of many megabytes come by: splitting at each
blank or escape would make a million objects of one.
"""

from __future__ import annotations

import binascii

import pybase64

from foveal.errors import BadBase64

_SPACE = b"\t\n\r\f "
_TO_STANDARD = bytes.maketrans(b"-_", b"+/")
_TO_QUOTED = bytes.maketrans(b"%", b"=")
_URI_SYMBOLS = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789%-._~:/?@!$&'()*+,;=[]"
_HOW = "send standard or url-safe base64 of the image file, with or without padding"
_URI_HOW = "send data:image/png;base64,..."


def image_of_text(text: str) -> bytes:
    """The bytes behind a base64 string or a `data:` URI; raises BadBase64."""
    if text[:5].lower() == "data:":
        return _image_of_data_uri(text)
    return decode(_ascii(text))


def decode(text: bytes) -> bytes:
    """Strict base64 after white space is taken out; raises BadBase64."""
    packed = text.translate(_TO_STANDARD, _SPACE).rstrip(b"=")
    if not packed:
        raise BadBase64("the base64 text is empty; " + _HOW)
    if len(packed) % 4 == 1:
        raise BadBase64(f"{len(packed)} symbols are no whole number of bytes: the base64 text is cut off; " + _HOW)
    try:
        return pybase64.b64decode(packed + b"=" * (-len(packed) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise BadBase64("the text holds symbols that are not base64; " + _HOW) from None


def _image_of_data_uri(text: str) -> bytes:
    """As RFC 2397 has it: `data:`, a media type or none, `;base64` or not, a comma, the data.

    The media type is a hint that nobody reads: the bytes decide the format. Escapes may stand anywhere.
    """
    head, comma, body = text[5:].partition(",")
    if not comma:
        raise BadBase64(f"the data-URI has no comma; {_URI_HOW}")
    kind, data = _ascii(head), _ascii(body)
    if _unescaped(kind.translate(None, _SPACE)).lower().endswith(b";base64"):
        return decode(_unescaped(data.translate(None, _SPACE)))
    if b"%" not in data:  # no image file is without a byte that has to be escaped
        raise BadBase64(f"the data-URI is neither base64 nor escaped bytes (is ;base64 missing?); {_URI_HOW}")
    unfolded = data.translate(None, b"\t\n\r")
    if unfolded.translate(None, _URI_SYMBOLS):
        raise BadBase64("the data-URI holds symbols that a URI cannot hold; escape them as %20, or send base64")
    return _unescaped(unfolded)


def _unescaped(text: bytes) -> bytes:
    """%41 as A: quoted-printable is the same thing with another sign. No line breaks; raises BadBase64."""
    if b"%" not in text:
        return text
    quoted = text.replace(b"=", b"%3D").translate(_TO_QUOTED)
    plain = binascii.a2b_qp(quoted)
    if len(plain) != len(quoted) - 2 * quoted.count(b"="):  # it leaves what is no escape as it is
        raise BadBase64(f"the data-URI has a % that is not followed by two hexadecimal digits; {_URI_HOW}")
    return plain


def _ascii(text: str) -> bytes:
    try:
        return text.encode("ascii")
    except UnicodeEncodeError:
        raise BadBase64("the text holds symbols that are not base64; " + _HOW) from None
