"""Whatever the bytes are, the answer is a picture or a refusal with a code."""

from __future__ import annotations

import contextlib
import io
import logging
import struct

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image, JpegImagePlugin

from foveal.errors import FovealError, Undecodable
from foveal.vision import decode as decode_module
from foveal.vision.decode import decode, probe

WHITE = (255, 255, 255)


def _files() -> list[bytes]:
    image = Image.fromarray(np.random.default_rng(5).integers(0, 256, (20, 24, 3), dtype=np.uint8))
    tags = Image.Exif()
    tags[0x0112] = 6
    kinds = [
        ("RGB", "JPEG", {}),
        ("RGB", "JPEG", {"progressive": True}),
        ("CMYK", "JPEG", {}),
        ("RGB", "PNG", {}),
        ("P", "PNG", {"transparency": 3}),
        ("RGBA", "WEBP", {}),
        ("P", "GIF", {}),
        ("P", "BMP", {}),
        ("RGB", "TIFF", {"compression": "tiff_lzw"}),
        ("RGB", "TIFF", {}),
        ("RGB", "AVIF", {}),
        ("L", "PPM", {}),
    ]
    files = []
    for mode, format, options in kinds:
        stream = io.BytesIO()
        exif = {"exif": tags.tobytes()} if format in {"JPEG", "PNG", "WEBP", "TIFF"} else {}
        image.convert(mode).save(stream, format, **options, **exif)
        files.append(stream.getvalue())
    return files


FILES = _files()
# most damage near the start, where headers and directories are
PLACES = st.one_of(st.integers(0, 200), st.integers(0, 4000))
CHANGES = st.lists(st.tuples(PLACES, st.binary(min_size=1, max_size=6)), min_size=1, max_size=6)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.sampled_from(FILES), changes=CHANGES, cut=st.one_of(st.just(0), st.integers(0, 500)))
def test_a_damaged_file_is_a_picture_or_a_refusal(data: bytes, changes: list[tuple[int, bytes]], cut: int) -> None:
    damaged = bytearray(data)
    for place, written in changes:
        at = place % len(damaged)
        damaged[at : at + len(written)] = written
    hostile = bytes(damaged[: len(damaged) - cut] if cut else damaged)
    with contextlib.suppress(FovealError):
        found = probe(hostile, 10**6)
        assert decode(hostile, WHITE, 10**6).shape == (found.height, found.width, 3)


@settings(max_examples=100, deadline=None)
@given(data=st.binary(max_size=300), start=st.sampled_from([file[:n] for file in FILES for n in (0, 12, 40)]))
def test_noise_is_refused(data: bytes, start: bytes) -> None:
    with contextlib.suppress(FovealError):
        decode(start + data, WHITE, 10**6)


@pytest.mark.parametrize("error", [struct.error, SyntaxError, OverflowError, ZeroDivisionError, KeyError])
def test_whatever_the_decoder_raises_is_a_damaged_picture(error, monkeypatch, caplog) -> None:
    def fail(*_: object) -> None:
        raise error("/usr/lib/inside")

    monkeypatch.setattr(JpegImagePlugin.JpegImageFile, "_open", fail)
    with caplog.at_level(logging.WARNING), pytest.raises(Undecodable) as refused:
        probe(FILES[0], 10**6)
    assert "inside" not in refused.value.message
    assert len(caplog.records) == 1


@pytest.mark.parametrize("error", [MemoryError(), OSError("out of memory error when reading image file")], ids=repr)
def test_a_lack_of_memory_is_not_called_a_damaged_picture(error, monkeypatch) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(JpegImagePlugin.JpegImageFile, "_open", fail)
    with pytest.raises(MemoryError):
        probe(FILES[0], 10**6)


def test_a_bug_of_ours_is_not_called_a_damaged_picture(monkeypatch) -> None:
    def fail(*_: object) -> None:
        raise TypeError("a bug")

    monkeypatch.setattr(decode_module, "flatten", fail)
    with pytest.raises(TypeError):
        decode(FILES[3], WHITE, 10**6)
