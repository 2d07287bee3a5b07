"""`foveal encode` over a mock transport: what it finds, writes, survives and reports."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from foveal_client._wire import read_embeddings
from tests.unit.cli.conftest import GRID, PICTURES, Server, hash_of, metadata_of, tensors_of


@pytest.fixture
def umask() -> Iterator[int]:
    before = os.umask(0o027)
    yield 0o027
    os.umask(before)


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
    assert json.loads(found["sha256"]) == {"a.png": hash_of(b"first")}
    assert json.loads(found["keys"]) == {"a.png": hash_of(b"firstr1")}
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
    assert embedding.key == hash_of(b"thirdr1")
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


def test_a_refused_key_stops_the_run_and_keeps_what_was_done_under_a_name_of_its_own(
    command: Callable[..., int], server: Server, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.refuse[b"second"] = (401, "unauthorized")
    out = tmp_path / "out.safetensors"
    assert command(photos, "--recursive", "--output-file", out, "--concurrency", 1) == 2
    assert not out.exists()
    assert set(tensors_of(tmp_path / "out.safetensors.partial")) == {"a.png"}
    told = capsys.readouterr().err
    assert "stopped after 1 of 3 pictures" in told and f"1 pictures are kept in {out}.partial" in told


def test_embeddings_of_two_models_are_not_mixed(command: Callable[..., int], server: Server, photos: Path) -> None:
    real = server.body

    def body(values: np.ndarray, content: bytes) -> bytes:
        made = real(values, content)
        server.model = "another"
        return made

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
        pytest.param(["LINK", "--output-file", "o.safetensors"], "a link to a file that is not there", id="dangling"),
        pytest.param(["LOOP", "--output-file", "o.safetensors"], "Too many levels of symbolic links", id="a loop"),
        pytest.param(["PHOTO", "--output-file", "o.npz"], "has the ending .npz", id="another format"),
        pytest.param(["PHOTO", "--output-file", "O.PARQUET"], "has the ending .PARQUET", id="in capitals"),
        pytest.param(["PHOTO", "--output-file", "o.safetensors.gz"], "has the ending .gz", id="two endings"),
        pytest.param(["PHOTO", "--output-file", "o.npy"], "need --output-dir", id="npy"),
        pytest.param(["PHOTO", "--output-file", "-"], "has no ending", id="standard output"),
        pytest.param(["PHOTO", "--output-file", ".safetensors"], "has no ending", id="an ending alone"),
        pytest.param(["PHOTO", "--output-file", "out"], "has no ending", id="no ending"),
        pytest.param(["PHOTO", "--output-file", "PIPE"], "is no regular file", id="output is a pipe"),
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
    (tmp_path / "link.png").symlink_to("nowhere.png")
    (tmp_path / "loop.png").symlink_to("loop.png")
    os.mkfifo(tmp_path / "pipe.safetensors")
    places = {"PHOTO": photos / "a.png", "EMPTY": tmp_path / "empty", "PIPE": tmp_path / "pipe.safetensors"}
    places |= {"LINK": tmp_path / "link.png", "LOOP": tmp_path / "loop.png"}
    before = sorted(tmp_path.rglob("*"))
    assert command(*(places.get(argument, argument) for argument in arguments)) == 2
    assert words in capsys.readouterr().err
    assert server.requests == [] and sorted(tmp_path.rglob("*")) == before


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
