"""The PPM family, read without Pillow: every kind and every white, and none that takes seconds."""

from __future__ import annotations

import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from foveal.errors import FovealError, TooLarge, Undecodable, UnsupportedType
from foveal.vision import ppm
from foveal.vision.decode import decode, probe

WHITE = (255, 255, 255)


def samples_of(kind: int, width: int, height: int, largest: int, seed: int) -> np.ndarray:
    channels = 3 if kind in (3, 6) else 1
    return np.random.default_rng(seed).integers(0, largest, width * height * channels, endpoint=True)


def file_of(kind: int, width: int, height: int, largest: int, samples: np.ndarray, gap: str = "\n") -> bytes:
    head = f"P{kind}{gap}{width}{gap}{height}" + (f"{gap}{largest}" if kind not in (1, 4) else "") + "\n"
    if kind in (1, 2, 3):
        return head.encode() + b" ".join(b"%d" % v for v in samples)
    if kind == 4:
        return head.encode() + np.packbits(samples.reshape(height, width), axis=1).tobytes()
    return head.encode() + samples.astype(np.uint8 if largest < 256 else ">u2").tobytes()


@given(
    kind=st.integers(1, 6),
    width=st.integers(1, 20),
    height=st.integers(1, 9),
    largest=st.one_of(st.sampled_from([1, 15, 254, 255, 256, 1023, 4095, 65534, 65535]), st.integers(1, 65535)),
    gap=st.sampled_from(["\n", " ", "\t\r\n", "\n# by hand\n", " #\n#two\r"]),
    seed=st.integers(0, 99),
)
def test_the_high_bits_of_every_sample_come_out(
    kind: int, width: int, height: int, largest: int, gap: str, seed: int
) -> None:
    largest = 1 if kind in (1, 4) else largest
    samples = samples_of(kind, width, height, largest, seed)
    data = file_of(kind, width, height, largest, samples, gap)
    assert probe(data, 10**6)[:3] == ("PPM", width, height)
    values = 1 - samples if kind in (1, 4) else samples
    eight = np.round(values / largest * 255) if largest < 256 else np.round(values / largest * 65535).astype(int) >> 8
    expected = np.broadcast_to(eight.reshape(height, width, -1), (height, width, 3))
    pixels = decode(data, WHITE, 10**6)
    assert pixels.dtype == np.uint8 and np.array_equal(pixels, expected)


@pytest.mark.parametrize("largest", [1, 15, 200, 255])
@pytest.mark.parametrize("kind", range(1, 7))
def test_up_to_eight_bits_the_values_are_those_of_pillow(kind: int, largest: int) -> None:
    samples = samples_of(kind, 17, 9, 1 if kind in (1, 4) else largest, 3)
    data = file_of(kind, 17, 9, largest, samples)
    theirs = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
    assert np.array_equal(decode(data, WHITE, 10**6), theirs)


@pytest.mark.parametrize("kind", range(1, 7))
def test_samples_that_end_early_are_undecodable(kind: int) -> None:
    largest = 1 if kind in (1, 4) else 999
    data = file_of(kind, 17, 9, largest, samples_of(kind, 17, 9, largest, 3))
    for cut in (6, len(data) // 2, len(data) - 15):
        with pytest.raises(Undecodable):
            decode(data[:-cut], WHITE, 10**6)


BAD = {
    "no height": b"P5 12\n",
    "no white": b"P5 12 12\n",
    "white is nothing": b"P5 2 2 0\n1234",
    "white is too much": b"P5 2 2 65536\n" + bytes(8),
    "no area": b"P5 0 2 255\n1234",
    "a sign": b"P2 1 1 255\n-5",
    "a letter": b"P2 2 1 255\n5 x",
    "an underscore": b"P2 2 1 255\n5 1_0",
    "above white": b"P2 2 1 200\n5 201",
    "a bit of 2": b"P1 2 1\n1 2",
    "a number of many digits": b"P2 1 1 255\n" + b"1" * 5000,
    "a long number": b"P2 1 1 255\n99999999999999999999",
    "a comment without an end": b"P5 # " + b"x" * 100_000,
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_ppm_is_undecodable(name: str) -> None:
    with pytest.raises(Undecodable):
        decode(BAD[name], WHITE, 10**6)


def test_floating_point_is_refused_by_its_header() -> None:
    for call in (lambda d: probe(d, 10**6), lambda d: decode(d, WHITE, 10**6)):
        with pytest.raises(UnsupportedType, match="floating-point"):
            call(b"Pf\n2 2\n-1.0\n" + bytes(16))


def test_text_beyond_its_limit_is_refused_before_it_is_read(monkeypatch) -> None:
    monkeypatch.setattr(ppm, "MAX_TEXT_BYTES", 50)
    with pytest.raises(TooLarge, match="binary form"):
        decode(b"P2 100 100 255\n" + b"1 " * 10_000, WHITE, 10**6)


def test_a_text_of_comments_only_is_answered_at_once() -> None:
    with pytest.raises(FovealError):
        decode(b"P3 2000 2000 255\n" + b"#\n" * 500_000, WHITE, 10**8)


def test_a_picture_of_bytes_is_not_copied() -> None:
    data = np.frombuffer(b"P6 2 1 255\nabcdef", np.uint8)
    assert np.shares_memory(decode(data, WHITE, 10**6), data)
