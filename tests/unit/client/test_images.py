"""Everything that callers call an image, and what is sent for it."""

from __future__ import annotations

import base64
import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from foveal_client._images import Url, is_ready_to_send, read_image, read_images

RNG = np.random.default_rng(7)


def decoded(data: object) -> Image.Image:
    assert isinstance(data, bytes)
    return Image.open(io.BytesIO(data))


def test_bytes_are_sent_as_they_are() -> None:
    assert read_image(b"any bytes") == b"any bytes"
    assert read_image(bytearray(b"any bytes")) == read_image(memoryview(b"any bytes")) == b"any bytes"


@pytest.mark.parametrize("kind", [str, Path])
def test_a_path_is_read(tmp_path: Path, kind: type) -> None:
    (tmp_path / "cat.jpg").write_bytes(b"a picture")
    assert read_image(kind(tmp_path / "cat.jpg")) == b"a picture"


def test_a_missing_file_is_an_os_error_that_names_it() -> None:
    with pytest.raises(FileNotFoundError, match=r"no/such\.png"):
        read_image("no/such.png")


@pytest.mark.parametrize("address", ["http://host/a.png", "https://host/a.png", "HTTPS://HOST/A"])
def test_a_url_is_left_to_the_server(address: str) -> None:
    assert read_image(address) == Url(address)


def test_a_data_uri_is_decoded_here() -> None:
    text = base64.b64encode(b"picture").decode()
    assert read_image(f"data:image/png;base64,{text}") == b"picture"
    assert read_image(f"DATA:;BASE64,{text}") == b"picture"
    assert read_image("data:,a%20b") == b"a b"


@pytest.mark.parametrize("uri", ["data:image/png;base64", "data:;base64,@@@", "data:;base64,abc"])
def test_a_broken_data_uri_is_a_value_error(uri: str) -> None:
    with pytest.raises(ValueError, match="data-URI"):
        read_image(uri)


@pytest.mark.parametrize(
    ("shape", "mode"), [((5, 7), "L"), ((1, 1), "L"), ((4, 3, 3), "RGB"), ((3, 1, 4), "RGBA")], ids=str
)
def test_arrays_become_png_without_loss(shape: tuple[int, ...], mode: str) -> None:
    pixels = RNG.integers(0, 256, shape, dtype=np.uint8)
    picture = decoded(read_image(pixels))
    assert (picture.format, picture.mode) == ("PNG", mode)
    assert np.array_equal(np.asarray(picture), pixels)


def test_arrays_in_any_memory_order_become_the_same_png() -> None:
    pixels = RNG.integers(0, 256, (6, 5, 3), dtype=np.uint8)
    assert read_image(np.asfortranarray(pixels)) == read_image(pixels)
    assert read_image(pixels[::-1, ::-1]) == read_image(pixels[::-1, ::-1].copy())


@pytest.mark.parametrize(
    ("array", "words"),
    [
        pytest.param(np.zeros((4, 4, 3), np.float32), "uint8.*float32", id="float"),
        pytest.param(np.zeros((3, 4, 2), np.uint8), r"\[3, 4, 2\]", id="two channels"),
        pytest.param(np.zeros((3, 40, 40), np.uint8), r"\[3, 40, 40\]", id="channels first"),
        pytest.param(np.zeros((2, 4, 4, 3), np.uint8), r"\[2, 4, 4, 3\]", id="a batch"),
        pytest.param(np.zeros((0, 4, 3), np.uint8), "must have pixels", id="no pixels"),
        pytest.param(np.zeros(4, np.uint8), r"\[4\]", id="one axis"),
    ],
)
def test_arrays_of_another_layout_are_refused_not_guessed(array: np.ndarray, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        read_image(array)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "I;16"])
def test_pillow_images_keep_their_pixels(mode: str) -> None:
    picture = Image.new(mode, (4, 3))
    picture.putpixel((1, 2), {"LA": (9, 8), "RGB": (9, 8, 7), "RGBA": (9, 8, 7, 6)}.get(mode, 1))
    sent = decoded(read_image(picture))
    assert (sent.format, sent.size) == ("PNG", (4, 3))
    assert sent.convert("RGBA").tobytes() == picture.convert("RGBA").tobytes()


@pytest.mark.parametrize("mode", ["CMYK", "YCbCr", "HSV", "PA"])
def test_pillow_modes_that_png_lacks_are_converted(mode: str) -> None:
    assert decoded(read_image(Image.new(mode, (4, 3)))).mode in ("RGB", "RGBA")


@pytest.mark.parametrize("mode", ["F", "I"])
def test_pillow_modes_without_a_scale_are_refused(mode: str) -> None:
    with pytest.raises(ValueError, match="convert it to 'RGB' first"):
        read_image(Image.new(mode, (4, 3)))


def test_an_orientation_in_memory_is_not_sent_on() -> None:
    turned = Image.new("RGB", (4, 3))
    turned.getexif()[0x0112] = 6
    buffer = io.BytesIO()
    turned.save(buffer, "JPEG", exif=turned.getexif())
    sent = decoded(read_image(Image.open(buffer)))
    assert (sent.size, dict(sent.getexif())) == ((4, 3), {})


@pytest.mark.parametrize("thing", [None, 3, [b"nested"], {"url": "x"}])
def test_other_things_are_a_type_error_that_says_what_an_image_is(thing: object) -> None:
    with pytest.raises(TypeError, match="an image is a path, bytes, URL"):
        read_image(thing)  # type: ignore[arg-type]


def test_the_image_at_fault_is_named_in_a_list() -> None:
    with pytest.raises(FileNotFoundError) as caught:
        read_images([b"fine", "no/such.png"])
    assert caught.value.__notes__ == ["in images[1]"]


def test_no_image_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="no image"):
        read_images([])


def test_only_bytes_and_urls_need_no_thread() -> None:
    assert is_ready_to_send(b"x") and is_ready_to_send("http://host/x")
    assert not is_ready_to_send("cat.png") and not is_ready_to_send(np.zeros((1, 1), np.uint8))
