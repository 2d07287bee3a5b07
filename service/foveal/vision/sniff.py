"""What do the bytes claim to be? Reads signatures only, so that no decoder meets bytes it was not made for.

A format of `SUPPORTED` is answered by name. Everything else is refused by name where it has one: a caller who
sent an SVG or an error page must read so, or will try again for ever.
"""

from __future__ import annotations

import re
from typing import Literal, NoReturn

from foveal.errors import Undecodable, UnsupportedType

Format = Literal["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF", "PPM", "HEIC"]
SUPPORTED = "JPEG, PNG, WEBP, GIF, BMP, TIFF, AVIF and PPM"
"""Everywhere; HEIC where the extra that reads it is installed."""
HEAD_BYTES = 4096
"""How far the signatures reach; the longest look is for `<svg` behind a comment and a doctype."""

_SIGNATURES: tuple[tuple[bytes, Format], ...] = (
    (b"\xff\xd8\xff", "JPEG"),
    (b"\x89PNG", "PNG"),
    (b"GIF8", "GIF"),
    (b"II*\0", "TIFF"),
    (b"MM\0*", "TIFF"),
    (b"II+\0", "TIFF"),
    (b"MM\0+", "TIFF"),
)
_CUT_SIGNATURE = "the image is truncated: it ends inside its signature"
_PPM = re.compile(rb"P[1-6][ \t\r\n\v\f]\s*[\d#]|P[1-6]#|Pf\s+[\d#]")
_DIB_HEADER_SIZES = (12, 40, 52, 56, 64, 108, 124)

_OTHERS: tuple[tuple[int, bytes, str], ...] = (
    (0, b"\0\0\x01\0", "ICO"),
    (0, b"\0\0\x02\0", "CUR"),
    (0, b"8BPS", "PSD"),
    (0, b"\xff\x0a", "JPEG XL"),
    (0, b"\0\0\0\x0cJXL ", "JPEG XL"),
    (0, b"\0\0\0\x0cjP  ", "JPEG 2000"),
    (0, b"\xff\x4f\xff\x51", "JPEG 2000"),
    (0, b"%!PS", "EPS"),
    (0, b"\xc5\xd0\xd3\xc6", "EPS"),
    (0, b"II\xbc", "JPEG XR"),
    (0, b"\x76\x2f\x31\x01", "OpenEXR"),
    (0, b"#?RADIANCE", "Radiance HDR"),
    (0, b"#?RGBE", "Radiance HDR"),
    (0, b"DDS ", "DDS"),
    (0, b"qoif", "QOI"),
    (0, b"icns", "ICNS"),
    (0, b"BPG\xfb", "BPG"),
    (0, b"FLIF", "FLIF"),
    (0, b"gimp xcf", "XCF"),
    (0, b"AT&TFORM", "DjVu"),
    (0, b"\xd7\xcd\xc6\x9a", "WMF"),
    (40, b" EMF", "EMF"),
    (0, b"SIMPLE  =", "FITS"),
    (128, b"DICM", "DICOM"),
    (0, b"\x8aMNG", "MNG"),
    (0, b"P7\n", "PAM"),
    (0, b"PF\n", "PFM"),
    (0, b"PK\x03\x04", "ZIP"),
    (0, b"PK\x05\x06", "ZIP"),
    (0, b"\x1f\x8b", "GZIP"),
    (0, b"BZh", "BZIP2"),
    (0, b"\xfd7zXZ\0", "XZ"),
    (0, b"7z\xbc\xaf\x27\x1c", "7-Zip"),
    (0, b"Rar!\x1a\x07", "RAR"),
    (0, b"\x28\xb5\x2f\xfd", "Zstandard"),
    (257, b"ustar", "TAR"),
    (0, b"\x1a\x45\xdf\xa3", "Matroska or WebM"),
    (0, b"OggS", "Ogg"),
    (0, b"ID3", "MP3"),
    (0, b"\x93NUMPY", "NPY"),
    (0, b"\x7fELF", "ELF"),
)

_HEIF_BRANDS = {b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"hevm", b"hevs", b"mif1", b"msf1"}
_AVIF_BRANDS = {b"avif", b"avis"}


def identify(data: memoryview) -> Format:
    """The supported format that the bytes claim; raises UnsupportedType with the name of anything else.

    Empty bytes and the mere beginning of a signature are Undecodable: something was cut off.
    """
    head = bytes(data[:HEAD_BYTES])
    if not head:
        raise Undecodable("the image is empty: it has 0 bytes")
    for signature, name in _SIGNATURES:
        if head.startswith(signature):
            return name
    if head[:4] == b"RIFF":
        return _riff(head)
    if head[4:8] == b"ftyp":
        return _iso_media(head)
    if _is_bmp(head):
        return "BMP"
    if _PPM.match(head):
        return "PPM"
    _refuse(head)


def refuse_format(name: str) -> NoReturn:
    """Raise UnsupportedType for bytes that were recognised, but are nothing we decode."""
    raise UnsupportedType(f"the bytes are {name}, which is not supported; send {SUPPORTED}")


def _refuse(head: bytes) -> NoReturn:
    for offset, signature, name in _OTHERS:
        if head.startswith(signature, offset):
            refuse_format(name)
    if b"%PDF-" in head[:1024]:
        refuse_format("PDF")
    if any(signature.startswith(head) for signature in (*(s for s, _ in _SIGNATURES), b"RIFF")):
        raise Undecodable(_CUT_SIGNATURE)
    if (text_kind := _textual(head)) is not None:
        refuse_format(text_kind)
    raise UnsupportedType(f"the bytes are no known image format; send {SUPPORTED}")


def _riff(head: bytes) -> Format:
    if head[8:12] == b"WEBP":
        return "WEBP"
    if len(head) < 12:
        raise Undecodable(_CUT_SIGNATURE)
    refuse_format({b"AVI ": "AVI", b"WAVE": "WAV"}.get(head[8:12], "RIFF without a picture"))


def _iso_media(head: bytes) -> Format:
    """AVIF, HEIC and videos share one container; the brands in its first box tell them apart."""
    if len(head) < 12:
        raise Undecodable(_CUT_SIGNATURE)
    box = head[: max(16, min(int.from_bytes(head[:4], "big"), 256))]
    major, brands = box[8:12], {box[8:12], *(box[i : i + 4] for i in range(16, len(box) - 3, 4))}
    if brands & _AVIF_BRANDS:
        return "AVIF"
    if brands & _HEIF_BRANDS:
        return "HEIC"
    refuse_format({b"qt  ": "QuickTime", b"crx ": "CR3", b"jxl ": "JPEG XL", b"jp2 ": "JPEG 2000"}.get(major, "MP4"))


def _is_bmp(head: bytes) -> bool:
    """Two letters are a weak signature: the length of the header that follows must be one of those in use."""
    if not head.startswith(b"BM"):
        return False
    size = head[14:18]
    return len(size) < 4 or int.from_bytes(size, "little") in _DIB_HEADER_SIZES


def _textual(head: bytes) -> str | None:
    """The name of what reads as text, or None."""
    text = _as_text(head)
    if text is None:
        return None
    text = text.lstrip("\ufeff \t\r\n").lower()
    if text.startswith("<"):
        return _markup(text)
    if text.startswith(("{", "[")):
        return "JSON"
    if text.startswith("data:"):
        return "a data-URI as text (send the bytes, or the URI inside a JSON request)"
    if text.startswith(("/9j/", "ivborw0kggo", "r0lgod", "uklgr")):
        return "base64 text (send the bytes, or the text inside a JSON request)"
    return "plain text"


def _markup(text: str) -> str:
    if "<svg" in text:
        return "SVG"
    if re.search(r"<(!doctype\s+html|html|head|body|title|script|div|p|h1)\b", text):
        return "HTML"
    return "XML"


def _as_text(head: bytes) -> str | None:
    """The head as text; None where it holds control characters or is no text in any Unicode encoding."""
    wide = head.startswith((b"\xff\xfe", b"\xfe\xff"))
    try:
        # the head may end inside a character: leave the last few bytes out where there is more
        text = head[: len(head) - 4 if len(head) == HEAD_BYTES else len(head)].decode("utf-16" if wide else "utf-8")
    except UnicodeDecodeError:
        return _as_latin(head)
    return None if re.search(r"[\0-\x08\x0e-\x1f]", text) else text


def _as_latin(head: bytes) -> str | None:
    """Markup in an older encoding is still markup; anything else that is not Unicode is not called text."""
    start = head.lstrip(b" \t\r\n")
    return head.decode("latin-1") if start.startswith(b"<") and b"\0" not in head else None
