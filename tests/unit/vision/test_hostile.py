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


def _spread(kind: str, data: bytes, piece: bytes, count: int) -> bytes:
    """The file with a piece of no meaning `count` times before its pixels."""
    at = {"PNG": 33, "JPEG": 2, "GIF": 13 + 768, "GIF parts": 13 + 768}[kind]
    between = b"!\xfe" + piece * count + b"\0" if kind == "GIF parts" else piece * count
    return data[:at] + between + data[at:]


EMPTY = {
    "PNG": (FILES[3], struct.pack(">I4sI", 0, b"tEXt", 0), 100_001),
    "JPEG": (FILES[0], b"\xff\xfe\0\2", 10_001),
    "GIF": (FILES[6], b"!\xfe\0", 100_001),
    "GIF parts": (FILES[6], b"\1a", 100_001),
}


@pytest.mark.parametrize("kind", EMPTY)
def test_very_many_empty_pieces_before_the_pixels_are_refused_and_many_are_read(kind: str) -> None:
    data, piece, too_many = EMPTY[kind]
    good = decode(data, WHITE, 10**6)
    assert np.array_equal(decode(_spread(kind, data, piece, too_many // 20), WHITE, 10**6), good)
    for call in (lambda d: probe(d, 10**6), lambda d: decode(d, WHITE, 10**6)):
        with pytest.raises(Undecodable, match="save it again"):
            call(_spread(kind, data, piece, too_many))


@pytest.mark.parametrize(("stray", "count"), [(b"\xff", 70_000), (b"\0", 70_000)], ids=["fill", "zeros"])
def test_a_jpeg_of_padding_is_refused(stray: bytes, count: int) -> None:
    data = FILES[0]
    at = data.index(b"\xff\xdb")
    assert np.array_equal(decode(data[:at] + stray * 9 + data[at:], WHITE, 10**6), decode(data, WHITE, 10**6))
    with pytest.raises(Undecodable, match="save it again"):
        probe(data[:at] + stray * count + data[at:], 10**6)


def test_a_gif_of_tiny_parts_behind_its_frame_is_refused_where_its_end_has_to_be_sought() -> None:
    data = FILES[6]
    behind = data[:-1] + b"!\xfe" + b"\1a" * 2_000_001 + b"\0;" + b"x" * 99
    with pytest.raises(Undecodable, match="save it again"):
        decode(behind, WHITE, 10**6)
