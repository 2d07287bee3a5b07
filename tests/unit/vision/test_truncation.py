"""A file that is not whole is refused, wherever it was cut, and never shown in part."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from foveal.errors import FovealError, Undecodable
from foveal.vision.decode import decode

WHITE = (255, 255, 255)
KINDS = {
    "jpeg": ("RGB", "JPEG", {}),
    "jpeg progressive": ("RGB", "JPEG", {"progressive": True}),
    "jpeg restarts": ("RGB", "JPEG", {"restart_marker_blocks": 2}),
    "jpeg grey": ("L", "JPEG", {}),
    "jpeg cmyk": ("CMYK", "JPEG", {}),
    "jpeg cmyk 4:2:0": ("CMYK", "JPEG", {"subsampling": 2}),
    "png": ("RGB", "PNG", {}),
    "png palette": ("P", "PNG", {}),
    "png animated": ("RGB", "PNG", {"frames": True}),
    "webp": ("RGB", "WEBP", {}),
    "webp lossless": ("RGBA", "WEBP", {"lossless": True}),
    "webp animated": ("RGB", "WEBP", {"frames": True}),
    "gif": ("P", "GIF", {}),
    "gif animated": ("P", "GIF", {"frames": True}),
    "bmp": ("RGB", "BMP", {}),
    "tiff": ("RGB", "TIFF", {}),
    "tiff lzw": ("RGB", "TIFF", {"compression": "tiff_lzw"}),
    "tiff deflate": ("RGB", "TIFF", {"compression": "tiff_adobe_deflate"}),
    "tiff jpeg": ("RGB", "TIFF", {"compression": "jpeg"}),
    "avif": ("RGB", "AVIF", {}),
    "ppm": ("RGB", "PPM", {}),
}


@pytest.fixture(scope="module")
def noisy() -> Image.Image:
    return Image.fromarray(np.random.default_rng(3).integers(0, 256, (48, 64, 3), dtype=np.uint8))


def file_of(noisy: Image.Image, encode, kind: str) -> bytes:
    mode, format, options = KINDS[kind]
    image, options = noisy.convert(mode), dict(options)
    if options.pop("frames", False):
        options |= {"save_all": True, "append_images": [image.transpose(Image.Transpose.ROTATE_180)]}
    return encode(image, format, **options)


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_cut_anywhere_is_undecodable(noisy, encode, kind) -> None:
    data = file_of(noisy, encode, kind)
    decode(data, WHITE, 10**6)
    cuts = {1, 2, 3, 4, 8, 11, 12, 13, 20, 59, 60, 61, 200, *range(0, len(data) - 16, max(1, len(data) // 25))} - {0}
    for cut in sorted(cuts):
        with pytest.raises(Undecodable):
            decode(data[:-cut], WHITE, 10**6)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.startswith("jpeg") and "4:2:0" not in kind])
@pytest.mark.parametrize("share", [0.3, 0.6, 0.9, 0.97])
def test_an_end_marker_does_not_make_a_cut_jpeg_whole(noisy, encode, kind, share) -> None:
    data = file_of(noisy, encode, kind)
    assert share * len(data) > data.index(b"\xff\xda")
    with pytest.raises(Undecodable):
        decode(data[: int(share * len(data))] + b"\xff\xd9", WHITE, 10**6)


def test_a_changed_byte_of_png_pixels_is_noticed(noisy, encode) -> None:
    data = bytearray(encode(noisy, "PNG"))
    data[len(data) // 2] ^= 1
    with pytest.raises(Undecodable, match="checksum"):
        decode(bytes(data), WHITE, 10**6)


@pytest.mark.parametrize(
    "kind", ["jpeg", "jpeg progressive", "png", "webp", "gif", "gif animated", "bmp", "tiff", "ppm"]
)
@pytest.mark.parametrize("tail", [b"\0" * 100, b"\r\n", b"<!-- appended -->" * 9], ids=["zeros", "newline", "text"])
def test_bytes_behind_the_end_hurt_nothing(noisy, encode, kind, tail) -> None:
    data = file_of(noisy, encode, kind)
    assert np.array_equal(decode(data + tail, WHITE, 10**6), decode(data, WHITE, 10**6))


@pytest.mark.parametrize("progressive", [False, True], ids=["baseline", "progressive"])
def test_a_jpeg_with_padding_between_its_headers_is_read(noisy, encode, progressive) -> None:
    data = encode(noisy, "JPEG", progressive=progressive)
    at = data.index(b"\xff\xdb")
    padded = data[:at] + b"\0\0\0" + data[at:]
    assert np.array_equal(decode(padded, WHITE, 10**6), decode(data, WHITE, 10**6))


def test_a_jpeg_of_endless_scans_is_refused_before_it_is_decoded(noisy, encode) -> None:
    data = encode(noisy, "JPEG", progressive=True)
    first, last = data.index(b"\xff\xda"), data.rindex(b"\xff\xda")
    with pytest.raises(Undecodable, match="scans"):
        decode(data[:first] + data[last:-2] * 101 + b"\xff\xd9", WHITE, 10**6)


SUBSAMPLINGS = {"4:4:4": 0, "4:2:2": 1, "4:2:0": 2}


@pytest.mark.parametrize("size", [(64, 48), (17, 13), (1, 1), (200, 3)], ids=str)
@pytest.mark.parametrize("progressive", [False, True], ids=["baseline", "progressive"])
@pytest.mark.parametrize("kind", [*SUBSAMPLINGS, "grey", "stored as RGB", "CMYK"])
def test_the_fast_jpeg_decoder_gives_the_bits_of_the_other(noisy, encode, kind, progressive, size) -> None:
    image = noisy.resize(size).convert({"grey": "L", "CMYK": "CMYK"}.get(kind, "RGB"))
    options = {"keep_rgb": True} if kind == "stored as RGB" else {"subsampling": SUBSAMPLINGS.get(kind, 0)}
    data = encode(image, "JPEG", progressive=progressive, quality=80, **options)
    assert np.array_equal(decode(data, WHITE, 10**6), np.asarray(Image.open(io.BytesIO(data)).convert("RGB")))


def test_a_refusal_is_never_retryable(noisy, encode) -> None:
    with pytest.raises(FovealError) as refused:
        decode(encode(noisy, "JPEG")[:-60], WHITE, 10**6)
    assert (refused.value.status, refused.value.retryable) == (422, False)
