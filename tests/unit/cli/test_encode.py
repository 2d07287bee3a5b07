"""`foveal encode` over a mock transport: what it finds, writes, survives and reports."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import safetensors

from foveal.cli import encode
from foveal.cli.encode_outputs import safetensors_header
from foveal_client._wire import read_embeddings

GRID = [1, 4, 2]
KEY = "0f" * 32
PICTURES = {"a.png": b"first", "b.JPG": b"second", "below/c.webp": b"third"}


class Server:
    """Answers every picture with two tokens that hold the length of its bytes; bytes that say so are refused."""

    def __init__(self) -> None:
        self.requests: list[httpx.Request] = []
        self.refuse: dict[bytes, tuple[int, str]] = {b"broken": (422, "undecodable")}
        self.model = "m"
        self.bfloat16 = False

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        if request.content in self.refuse:
            status, code = self.refuse[request.content]
            return httpx.Response(status, json={"error": {"code": code, "message": "because", "retryable": False}})
        values = np.full((2, 3), len(request.content), np.float32)
        return httpx.Response(200, headers={"Content-Type": "application/octet-stream"}, content=self.body(values))

    def body(self, values: np.ndarray) -> bytes:
        import ml_dtypes

        values = values.astype(ml_dtypes.bfloat16) if self.bfloat16 else values
        about = {
            "sha256": [hashlib.sha256(b"").hexdigest()],
            "keys": [KEY],
            "levels": [{"name": "main", "start": 0, "stop": 3}],
            "usage": {"images": 1, "patches": 8, "tokens": 2},
            "tokens": [2],
        }
        texts = {"model": self.model, "dtype": values.dtype.name} | {k: json.dumps(v) for k, v in about.items()}
        grid = np.array([GRID], np.int64)
        return safetensors_header([("grid_thw", grid), ("image.0", values)], texts) + grid.tobytes() + values.tobytes()


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for name, content in {**PICTURES, "notes.txt": b"x", ".hidden.png": b"x"}.items():
        path = tmp_path / "photos" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return tmp_path / "photos"


@pytest.fixture
def command(server: Server) -> Callable[..., int]:
    def run(*arguments: object) -> int:
        parser = argparse.ArgumentParser()
        encode.add_parser(parser.add_subparsers())
        args = parser.parse_args(["encode", "--url", "http://host", *map(str, arguments)])
        return encode.run(args, httpx.MockTransport(server))

    return run


@pytest.fixture
def umask() -> Iterator[int]:
    before = os.umask(0o027)
    yield 0o027
    os.umask(before)


def tensors_of(path: Path) -> dict[str, Any]:
    return dict(safetensors.deserialize(path.read_bytes()))


def metadata_of(path: Path) -> dict[str, Any]:
    with safetensors.safe_open(path, "np") as file:
        return file.metadata()


def test_a_folder_becomes_one_file_with_a_tensor_for_each_picture(
    command: Callable[..., int], photos: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.safetensors"
    assert command(photos, "--recursive", "--output-file", out) == 0
    tensors = tensors_of(out)
    assert set(tensors) == set(PICTURES)
    for name, content in PICTURES.items():
        assert tensors[name]["shape"] == [2, 3]
        assert np.frombuffer(tensors[name]["data"], np.float32).tolist() == [len(content)] * 6


def test_grids_hashes_and_levels_are_in_the_files_metadata(
    command: Callable[..., int], photos: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.safetensors"
    assert command(photos / "a.png", "--output-file", out) == 0
    found = metadata_of(out)
    assert (found["model"], found["dtype"]) == ("m", "float32")
    assert json.loads(found["grid_thw"]) == {"a.png": GRID}
    assert json.loads(found["tokens"]) == {"a.png": 2}
    assert json.loads(found["sha256"]) == {"a.png": hashlib.sha256(b"").hexdigest()}
    assert json.loads(found["keys"]) == {"a.png": KEY}
    assert json.loads(found["levels"]) == [{"name": "main", "start": 0, "stop": 3}]


def test_folders_below_and_other_files_are_left_out_unless_asked_for(
    command: Callable[..., int], photos: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.safetensors"
    assert command(photos, "--output-file", out) == 0
    assert set(tensors_of(out)) == {"a.png", "b.JPG"}


def test_pictures_of_the_same_name_in_two_folders_do_not_overwrite_each_other(
    command: Callable[..., int], photos: Path, tmp_path: Path
) -> None:
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "a.png").write_bytes(b"another")
    out = tmp_path / "out.safetensors"
    assert command(photos / "a.png", tmp_path / "more" / "a.png", photos / "a.png", "--output-file", out) == 0
    assert set(tensors_of(out)) == {"photos/a.png", "more/a.png"}


def test_a_file_for_each_picture_has_the_form_of_the_servers_answer(
    command: Callable[..., int], photos: Path, tmp_path: Path
) -> None:
    out = tmp_path / "new" / "out"
    assert command(photos, "--recursive", "--output-dir", out) == 0
    [embedding] = read_embeddings((out / "below" / "c.webp.safetensors").read_bytes(), 1)
    assert embedding.values.tolist() == [[5.0] * 3] * 2
    assert (list(embedding.grid_thw), embedding.model, embedding.usage.patches) == (GRID, "m", 8)
    assert embedding.key == KEY
    manifest = json.loads((out / "manifest.json").read_text())
    assert set(manifest["grid_thw"]) == set(PICTURES)


@pytest.mark.parametrize(("flags", "dtype", "value"), [([], np.float32, 5.0), (["--npy-bits"], np.uint16, 0x40A0)])
def test_npy_files_hold_bfloat16_as_float32_or_as_bits(
    command: Callable[..., int],
    server: Server,
    photos: Path,
    tmp_path: Path,
    flags: list[str],
    dtype: Any,
    value: float,
) -> None:
    server.bfloat16 = True
    assert command(photos / "a.png", "--output-dir", tmp_path, "--format", "npy", *flags) == 0
    values = np.load(tmp_path / "a.png.npy", allow_pickle=False)
    assert (values.dtype, values.shape, values[0, 0]) == (dtype, (2, 3), value)


def test_bfloat16_stays_bfloat16_in_safetensors(
    command: Callable[..., int], server: Server, photos: Path, tmp_path: Path
) -> None:
    server.bfloat16 = True
    assert command(photos, "--output-file", tmp_path / "out.safetensors") == 0
    assert tensors_of(tmp_path / "out.safetensors")["a.png"]["dtype"] == "BF16"


def test_a_bad_picture_is_reported_and_the_others_are_kept(
    command: Callable[..., int], photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (photos / "aa.png").write_bytes(b"broken")
    out = tmp_path / "out.safetensors"
    assert command(photos, "--output-file", out, "--concurrency", 2) == 1
    assert set(tensors_of(out)) == {"a.png", "b.JPG"}
    told = capsys.readouterr()
    assert told.out == ""
    assert f"{photos / 'aa.png'}: 422 undecodable: because" in told.err
    assert "1 of 3 pictures failed" in told.err


def test_when_every_picture_fails_there_is_no_file(command: Callable[..., int], photos: Path, tmp_path: Path) -> None:
    (photos / "a.png").write_bytes(b"broken")
    assert command(photos / "a.png", "--output-file", tmp_path / "out.safetensors") == 1
    assert not (tmp_path / "out.safetensors").exists()


def test_a_refused_key_stops_the_run_and_keeps_what_was_done(
    command: Callable[..., int], server: Server, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.refuse[b"second"] = (401, "unauthorized")
    out = tmp_path / "out.safetensors"
    assert command(photos, "--recursive", "--output-file", out, "--concurrency", 1) == 2
    assert set(tensors_of(out)) == {"a.png"}
    assert "stopped after 1 of 3 pictures" in capsys.readouterr().err


def test_embeddings_of_two_models_are_not_mixed(command: Callable[..., int], server: Server, photos: Path) -> None:
    real = server.body

    def body(values: np.ndarray) -> bytes:
        content = real(values)
        server.model = "another"
        return content

    server.body = body  # type: ignore[method-assign]
    assert command(photos, "--output-file", photos / "out.safetensors", "--concurrency", 1) == 1
    assert set(tensors_of(photos / "out.safetensors")) == {"a.png"}


def test_options_are_passed_on_and_the_rest_is_left_to_the_server(
    command: Callable[..., int], server: Server, photos: Path, tmp_path: Path
) -> None:
    options = ["--output", "pooled", "--dtype", "float16", "--normalize", "--min-pixels", "9", "--max-pixels", "99"]
    more = ["--background", "#ffffff", "--oversize", "downscale"]
    assert command(photos / "a.png", "--output-dir", tmp_path, *options, *more) == 0
    assert command(photos / "a.png", "--output-dir", tmp_path) == 0
    sent, bare = (dict(request.url.params) for request in server.requests)
    assert sent == {
        "output": "pooled",
        "dtype": "float16",
        "normalize": "true",
        "min_pixels": "9",
        "max_pixels": "99",
        "background": "#ffffff",
        "oversize": "downscale",
    }
    assert bare == {}


@pytest.mark.parametrize("place", ["--output-file", "--output-dir"])
def test_files_get_the_permissions_of_the_umask(
    command: Callable[..., int], photos: Path, tmp_path: Path, umask: int, place: str
) -> None:
    out = tmp_path / "out.safetensors"
    assert command(photos / "a.png", place, out if place == "--output-file" else tmp_path) == 0
    written = out if place == "--output-file" else tmp_path / "a.png.safetensors"
    assert stat.S_IMODE(written.stat().st_mode) == 0o666 & ~umask


def test_nothing_temporary_is_left_behind(command: Callable[..., int], photos: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    assert command(photos, "--output-file", tmp_path / "out" / "o.safetensors") == 0
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["o.safetensors"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        pytest.param(["no/such.png", "--output-file", "o.safetensors"], "no such file or folder", id="missing"),
        pytest.param(["EMPTY", "--output-file", "o.safetensors"], "no pictures in", id="nothing in it"),
        pytest.param(["PHOTO", "--output-file", "no/o.safetensors"], "No such file", id="folder of output missing"),
        pytest.param(["PHOTO", "--output-file", "EMPTY"], "is a folder", id="output is a folder"),
        pytest.param(["PHOTO", "--output-file", "o.npy", "--format", "npy"], "need --output-dir", id="npy in one"),
        pytest.param(["PHOTO", "--output-dir", "PHOTO"], "File exists", id="output is a file"),
        pytest.param(["PHOTO", "--output-dir", "EMPTY", "--url", "host:80"], "base_url must begin", id="bad address"),
    ],
)
def test_impossible_arguments_end_with_a_sentence_and_send_nothing(
    command: Callable[..., int],
    server: Server,
    photos: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    places = {"PHOTO": photos / "a.png", "EMPTY": tmp_path / "empty"}
    assert command(*(places.get(argument, argument) for argument in arguments)) == 2
    assert words in capsys.readouterr().err
    assert server.requests == []


@pytest.mark.parametrize("arguments", [["a.png"], ["a.png", "--output-dir", "x", "--concurrency", "0"]], ids=str)
def test_wrong_flags_are_exit_code_two(command: Callable[..., int], arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        command(*arguments)
    assert caught.value.code == 2


def test_it_imports_with_the_base_dependencies_only() -> None:
    program = "import sys, foveal.cli.encode; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "fastapi", "PIL", "pydantic", "msgspec", "orjson", "uvicorn"} & set(found)


def test_a_wrong_option_is_told_once_and_ends_the_command(
    command: Callable[..., int], server: Server, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.refuse = dict.fromkeys(PICTURES.values(), (400, "invalid_request"))
    assert command(photos, "--recursive", "--background", "plaid", "--output-dir", tmp_path / "out") == 2
    told = capsys.readouterr().err
    assert told.count("because") == 1 and "stopped after 0 of 3 pictures" in told
    assert not any(name in told for name in PICTURES), "it is not one picture's fault"
