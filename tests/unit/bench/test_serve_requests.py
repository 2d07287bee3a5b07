"""Pictures whose copies differ in bytes only, and requests that the service reads as they were meant."""

from __future__ import annotations

import io
from pathlib import Path

import httptools
import numpy as np
import pytest
from PIL import Image
from starlette.datastructures import QueryParams

from foveal.api.intake import read_intake
from foveal.bench.serve import pictures
from foveal.bench.serve.payloads import CONTENT_TYPES, Composer, Payload, Target
from foveal.errors import ConfigurationError


def saved(form: str) -> bytes:
    sink = io.BytesIO()
    Image.fromarray(np.arange(48 * 40 * 3, dtype=np.uint8).reshape(40, 48, 3)).save(sink, form)
    return sink.getvalue()


def pixels(body: bytes) -> list[object]:
    with Image.open(io.BytesIO(body)) as image:
        return np.asarray(image.convert("RGB")).tolist()


@pytest.mark.parametrize("form", ["JPEG", "PNG"])
def test_copies_differ_in_bytes_and_not_in_pixels(form: str) -> None:
    picture = saved(form)
    one, other = pictures.copy_of(picture, 1), pictures.copy_of(picture, 2)
    assert len({picture, one, other}) == 3
    assert pixels(picture) == pixels(one) == pixels(other)


def test_other_formats_stay_as_they_are_and_are_counted() -> None:
    webp = saved("WEBP")
    assert pictures.copy_of(webp, 1) == webp
    assert pictures.num_uncopied([webp, saved("PNG"), saved("JPEG")]) == 1


def test_synthetic_pictures_have_the_size_asked_for_and_come_from_a_seed() -> None:
    one, again, other = (pictures.synthetic(70, 50, seed) for seed in (1, 1, 2))
    assert one == again != other
    with Image.open(io.BytesIO(one)) as image:
        assert (image.format, image.size) == ("JPEG", (70, 50))


def test_a_mixture_is_of_several_sizes() -> None:
    assert len({len(picture) for picture in pictures.of_mixture(4, seed=0)}) > 1


def test_a_folder_is_read_in_order_and_an_empty_one_refused(tmp_path: Path) -> None:
    (tmp_path / "b").write_bytes(b"2")
    (tmp_path / "a").write_bytes(b"1")
    (tmp_path / "empty").mkdir()
    assert pictures.of_folder(tmp_path) == [b"1", b"2"]
    for bad in (tmp_path / "empty", tmp_path / "missing"):
        with pytest.raises(ConfigurationError, match="--folder"):
            pictures.of_folder(bad)


@pytest.mark.parametrize("text", ["640", "640x", "0x5", "axb", "-1x2"])
def test_a_size_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="WIDTHxHEIGHT"):
        pictures.parse_size(text)


class Read:
    """What a parser of requests sees."""

    def __init__(self, request: bytes) -> None:
        self.url, self.body, self.is_whole = b"", b"", False
        self.headers: dict[str, str] = {}
        httptools.HttpRequestParser(self).feed_data(request)

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode().lower()] = value.decode()

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.is_whole = True


@pytest.mark.parametrize(("payload", "count"), [("raw", 1), ("multipart", 1), ("multipart", 3), ("json", 3)])
def test_the_service_reads_the_pictures_that_were_composed(payload: Payload, count: int) -> None:
    images = [saved("PNG") + bytes([i]) * i for i in range(count)]
    read = Read(Composer(Target("http://h:8", payload)).compose(images))
    assert read.is_whole and read.url == b"/encode"
    intake = read_intake(read.body, read.headers["content-type"], QueryParams(), 64, None)
    assert [bytes(image) for image in intake.images] == images  # type: ignore[arg-type]


def test_options_key_and_deadline_go_along() -> None:
    options = {"output": "pooled", "dtype": "float16"}
    target = Target("http://h:8/base", "raw", "json", options, api_key="secret", timeout_seconds=1.5)
    read = Read(Composer(target).compose([b"x"]))
    assert read.url == b"/base/encode?output=pooled&dtype=float16"
    assert read.headers["authorization"] == "Bearer secret"
    assert read.headers["x-request-timeout-ms"] == "1500"
    assert read.headers["accept"] == "application/json"
    assert read.headers["host"] == "h:8"
    assert set(CONTENT_TYPES) == {"raw", "multipart", "json"}


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://h", "http://", "http://h:port"])
def test_an_url_that_names_no_server_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="--url"):
        Target(url).check()
