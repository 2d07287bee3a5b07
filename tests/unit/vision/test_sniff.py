"""What the bytes claim to be decides, and what is refused is refused by its name."""

from __future__ import annotations

import pytest

from foveal.errors import FovealError, Undecodable, UnsupportedType
from foveal.vision import heif
from foveal.vision.decode import decode, probe
from foveal.vision.sniff import identify

FTYP = b"\0\0\0\x18ftyp"
REFUSED = {
    "SVG": b'<?xml version="1.0"?>\n<!-- drawn -->\n<svg xmlns="http://www.w3.org/2000/svg"/>',
    "SVG (bare)": b"<svg><image href='file:///etc/passwd'/></svg>",
    "SVG (utf-16)": "<svg></svg>".encode("utf-16"),
    "HTML": b"\n<!DOCTYPE html><html><body>404</body></html>",
    "HTML (latin-1)": b"<html><body>Gr\xfc\xdfe</body></html>",
    "XML": b"<?xml version='1.0'?><rss/>",
    "JSON": b'{"error": "not found"}',
    "plain text": b"upstream connect error or disconnect",
    "base64": b"iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJ",
    "data-URI": b"data:image/png;base64,iVBORw0KGgo=",
    "PDF": b"%PDF-1.7\n%\xe2\xe3\xcf\xd3",
    "ZIP": b"PK\x03\x04" + bytes(30),
    "GZIP": b"\x1f\x8b\x08" + bytes(20),
    "ICO": b"\0\0\x01\0\x01\0\x10\x10" + bytes(16),
    "PSD": b"8BPS\0\x01" + bytes(20),
    "JPEG XL": b"\0\0\0\x0cJXL \r\n\x87\n" + bytes(8),
    "JPEG XL (stream)": b"\xff\x0a" + bytes(20),
    "JPEG 2000": b"\0\0\0\x0cjP  \r\n\x87\n" + bytes(8),
    "EPS": b"%!PS-Adobe-3.0 EPSF-3.0\n",
    "QuickTime": FTYP + b"qt  \0\0\0\0qt  qt  ",
    "MP4": FTYP + b"isom\0\0\0\0isommp41",
    "AVI": b"RIFF\x10\0\0\0AVI LIST" + bytes(8),
    "WAV": b"RIFF\x10\0\0\0WAVEfmt " + bytes(8),
    "no known image format": bytes(range(200, 256)) * 4,
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_supported_picture_is_refused_by_its_name(name: str) -> None:
    for call in (lambda data: probe(data, 10**6), lambda data: decode(data, (255, 255, 255), 10**6)):
        with pytest.raises(UnsupportedType) as refused:
            call(REFUSED[name])
        assert name.split(" (")[0] in refused.value.message
        assert (refused.value.status, refused.value.retryable) == (415, False)


@pytest.mark.parametrize("brand", [b"heic", b"mif1", b"heix", b"msf1"])
def test_heic_without_its_extra_is_refused_by_its_name(brand: bytes, monkeypatch) -> None:
    monkeypatch.setattr(heif, "_HEIF", None)
    with pytest.raises(UnsupportedType, match=r"HEIC.*\[heif\]"):
        probe(FTYP + brand + b"\0\0\0\0heixmif1", 10**6)


def test_an_avif_that_names_heif_first_is_an_avif() -> None:
    assert identify(memoryview(FTYP + b"mif1\0\0\0\0avifmiaf")) == "AVIF"


@pytest.mark.parametrize("text", ["BMW is a car", "P3 of the list", "P5", "II. Kings", "GIF is a format", "MM"])
def test_text_that_begins_like_a_signature_is_text(text: str) -> None:
    with pytest.raises(UnsupportedType, match="plain text"):
        identify(memoryview(text.encode() + b" and much more of it"))


def test_an_empty_image_is_undecodable() -> None:
    with pytest.raises(Undecodable, match="empty"):
        probe(b"", 10**6)


SIGNATURES = [
    b"\xff\xd8\xff",
    b"\x89PNG\r\n\x1a\n",
    b"GIF89a",
    b"RIFF\x10\0\0\0WEBP",
    b"II*\0",
    b"MM\0*",
    FTYP + b"avif",
]


@pytest.mark.parametrize("signature", SIGNATURES, ids=lambda s: s.hex())
@pytest.mark.parametrize(
    "rest", [b"", bytes(range(256)), bytes(64), b"\xff" * 64], ids=["end", "ramp", "zeros", "ones"]
)
def test_garbage_behind_a_signature_is_undecodable(signature: bytes, rest: bytes) -> None:
    for call in (lambda data: probe(data, 10**6), lambda data: decode(data, (255, 255, 255), 10**6)):
        with pytest.raises(Undecodable):
            call(signature + rest)


@pytest.mark.parametrize("signature", SIGNATURES, ids=lambda s: s.hex())
def test_a_cut_signature_is_refused(signature: bytes) -> None:
    for length in range(1, len(signature)):
        with pytest.raises(FovealError) as refused:
            probe(signature[:length], 10**6)
        assert refused.value.status in (415, 422)
