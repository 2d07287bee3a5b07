"""Base64 and data-URIs as people send them are read; anything else is refused, never half read."""

from __future__ import annotations

import base64
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveal.api.base64s import image_of_text
from foveal.errors import BadBase64

blobs = st.binary(min_size=1, max_size=200)
KINDS = st.sampled_from(
    [
        "",
        "image/png",
        "IMAGE/PNG",
        "text/plain;charset=utf-8",
        ";charset=x",
        "image/svg%2Bxml",
        "image/png;a=b;c=%22d%22",
    ]
)
BASE64 = st.sampled_from([";base64", ";BASE64", "; base64", " ;base64 ", ";base%364"])


@given(blobs, st.booleans(), st.booleans(), st.integers(1, 80), st.sampled_from(["\n", "\r\n", " ", "\t"]))
def test_both_alphabets_padding_or_not_and_white_space_are_read(
    data: bytes, url_safe: bool, padded: bool, width: int, space: str
) -> None:
    text = (base64.urlsafe_b64encode if url_safe else base64.b64encode)(data).decode()
    text = text if padded else text.rstrip("=")
    wrapped = space.join(text[i : i + width] for i in range(0, len(text), width)) + space
    assert image_of_text(wrapped) == data
    for head in ("data:image/png;base64,", "DATA:;BASE64,", "data:text/plain;charset=utf-8;base64,", "data:;base64,"):
        assert image_of_text(head + wrapped) == data


@given(data=blobs, kind=KINDS, base=BASE64, escaped=st.sampled_from(["", "+/=", "+/=ABCabc019"]), lower=st.booleans())
def test_every_spelling_of_a_base64_data_uri_is_read(
    data: bytes, kind: str, base: str, escaped: str, lower: bool
) -> None:
    text = "".join(f"%{ord(symbol):02x}" if symbol in escaped else symbol for symbol in base64.b64encode(data).decode())
    text = text if lower else text.replace("%2b", "%2B").replace("%2f", "%2F").replace("%3d", "%3D")
    assert image_of_text(f"data:{kind}{base},{text}") == data


@given(data=blobs, kind=KINDS, safe=st.sampled_from(["", "/", "!$&'()*+,;=:@/?-._~"]), fold=st.booleans())
def test_escaped_bytes_are_read_as_the_rfc_says(data: bytes, kind: str, safe: str, fold: bool) -> None:
    text = quote(b"\x89" + data, safe=safe)
    text = text[:30] + "\r\n" + text[30:] if fold else text
    assert image_of_text(f"data:{kind},{text}") == b"\x89" + data


@given(blobs, st.characters(exclude_categories=("Cs",)), st.integers(0, 300))
def test_a_foreign_symbol_anywhere_is_refused(data: bytes, symbol: str, at: int) -> None:
    if symbol.isascii() and (symbol.isalnum() or symbol in "+/-_= \t\n\r\f"):
        return
    text = base64.b64encode(data).decode()
    at %= len(text)
    for head in ("", "data:image/png;base64,"):
        with pytest.raises(BadBase64):
            image_of_text(head + text[:at] + symbol + text[at:])


@given(blobs, st.characters(exclude_categories=("Cs",)), st.integers(0, 300))
def test_a_symbol_that_no_uri_holds_is_refused_among_escaped_bytes(data: bytes, symbol: str, at: int) -> None:
    if symbol in "%\t\n\r" or (symbol.isascii() and (symbol.isalnum() or symbol in "-._~:/?@!$&'()*+,;=[]")):
        return
    text = "".join(f"%{byte:02X}" for byte in data)
    at = at * 3 % len(text)
    with pytest.raises(BadBase64):
        image_of_text("data:image/png," + text[:at] + symbol + text[at:])


@given(st.text(alphabet="%4g=,;A \n", max_size=12), st.sampled_from(["", ";base64", "image/png", "%"]))
def test_whatever_the_escapes_are_the_answer_is_bytes_or_a_refusal(body: str, head: str) -> None:
    try:
        assert isinstance(image_of_text(f"data:{head},{body}"), bytes)
    except BadBase64 as error:
        assert error.status == 400 and error.message


BAD = [
    "",
    "  ",
    "A",
    "AAAAA",
    "data:image/png;base64,",
    "data:image/png",
    "data:,x",
    "==",
    "data:",
    "data:,",
    "data:;base64,",
]
BAD += [
    "data:image/png,%",
    "data:image/png,%4",
    "data:image/png,%4g",
    "data:;base64,QU%",
    "data:;base64,%4",
    "data:,%FF#x",
]
BAD += [
    "data:%,%41",
    "data:;base64,%%34",
    "data:;base64,QUJD%3D%3D%3DQ",
    "data:,%41 %42",
    "data:image/png,iVBORw0KGgo=",
]


@pytest.mark.parametrize("text", BAD)
def test_what_is_no_whole_base64_is_refused(text: str) -> None:
    with pytest.raises(BadBase64):
        image_of_text(text)


def test_a_forgotten_base64_is_guessed_in_the_message() -> None:
    with pytest.raises(BadBase64, match="is ;base64 missing"):
        image_of_text("data:image/png,iVBORw0KGgoAAAANSUhEUg==")


def test_padding_in_the_middle_is_refused() -> None:
    with pytest.raises(BadBase64):
        image_of_text("QUJD=QUJD")
