"""Base64 as people send it is read; anything else is refused, never half read."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveal.api.base64s import image_of_text
from foveal.errors import BadBase64

blobs = st.binary(min_size=1, max_size=200)


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


@given(blobs, st.characters(exclude_categories=("Cs",)), st.integers(0, 300))
def test_a_foreign_symbol_anywhere_is_refused(data: bytes, symbol: str, at: int) -> None:
    if symbol.isascii() and (symbol.isalnum() or symbol in "+/-_= \t\n\r\f"):
        return
    text = base64.b64encode(data).decode()
    at %= len(text)
    with pytest.raises(BadBase64):
        image_of_text(text[:at] + symbol + text[at:])


@given(blobs)
def test_escaped_data_uris_are_read(data: bytes) -> None:
    text = base64.b64encode(data).decode().replace("+", "%2B").replace("/", "%2F").replace("=", "%3D")
    assert image_of_text("data:image/png;base64," + text) == data


@pytest.mark.parametrize("text", ["", "  ", "A", "AAAAA", "data:image/png;base64,", "data:image/png", "data:,x", "=="])
def test_what_is_no_whole_base64_is_refused(text: str) -> None:
    with pytest.raises(BadBase64):
        image_of_text(text)


def test_padding_in_the_middle_is_refused() -> None:
    with pytest.raises(BadBase64):
        image_of_text("QUJD=QUJD")
