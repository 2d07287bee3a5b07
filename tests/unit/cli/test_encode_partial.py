"""A finished file is never replaced by less: what a stopped or failed command keeps, and how the next goes on."""

from __future__ import annotations

import json
import os
import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foveal.cli.encode_partial import OneFile
from foveal_client import Embedding, GridTHW, Usage
from tests.unit.cli.conftest import PICTURES, Server, hash_of, metadata_of, tensors_of

Command = Callable[..., int]
NAMES = [f"{n}.png" for n in range(6)]


@pytest.fixture
def six(tmp_path: Path) -> Path:
    (tmp_path / "six").mkdir()
    for n, name in enumerate(NAMES):
        (tmp_path / "six" / name).write_bytes(b"p" * (n + 1))
    return tmp_path / "six"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out.safetensors"


@pytest.fixture
def partial(out: Path) -> Path:
    return out.with_name("out.safetensors.partial")


def values_of(path: Path) -> dict[str, float]:
    """By name, the number that its tensor consists of."""
    found = {name: np.frombuffer(tensor["data"], np.float32) for name, tensor in tensors_of(path).items()}
    assert all(set(values) == {values[0]} for values in found.values())
    return {name: float(values[0]) for name, values in found.items()}


EXPECTED = {name: float(n + 1) for n, name in enumerate(NAMES)}


def stop_at(server: Server, content: bytes, act: Callable[[], httpx.Response]) -> None:
    """Do something else, once, when this picture comes."""
    real = server.answer

    def answer(request: httpx.Request) -> httpx.Response:
        if request.content == content:
            server.answer = real  # type: ignore[method-assign]
            return act()
        return real(request)

    server.answer = answer  # type: ignore[method-assign]


def gone() -> httpx.Response:
    raise httpx.ConnectError("refused")


def stopped_halfway(command: Command, server: Server, six: Path, out: Path, *flags: str) -> None:
    server.refuse[b"pppp"] = (401, "unauthorized")
    assert command(six, "--output-file", out, "--concurrency", 1, *flags) == 2
    del server.refuse[b"pppp"]
    server.requests.clear()


def test_a_server_that_stops_leaves_the_finished_file_and_the_next_run_goes_on(
    command: Command, server: Server, six: Path, out: Path, partial: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(six, "--output-file", out) == 0
    finished = out.read_bytes()
    stopped_halfway(command, server, six, out)
    assert out.read_bytes() == finished
    assert values_of(partial) == {name: EXPECTED[name] for name in NAMES[:3]}
    assert f"3 pictures are kept in {partial}; the same command goes on from there" in capsys.readouterr().err
    assert command(six, "--output-file", out, "--concurrency", 1) == 0
    assert [len(request.content) for request in server.requests] == [1, 4, 5, 6], "one as a proof, then what lacked"
    assert values_of(out) == EXPECTED and out.read_bytes() == finished
    assert not partial.exists()
    assert "6 pictures (3 of them by an earlier run), 12 tokens" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_signal_ends_the_command_and_keeps_what_there_is(
    command: Command,
    server: Server,
    six: Path,
    out: Path,
    partial: Path,
    capsys: pytest.CaptureFixture[str],
    name: str,
) -> None:
    number = getattr(signal, name)
    out.write_bytes(b"finished")
    stop_at(server, b"pppp", lambda: (os.kill(os.getpid(), number), httpx.Response(503))[1])
    assert command(six, "--output-file", out, "--concurrency", 1) == 128 + number
    told = capsys.readouterr().err
    assert f"stopped by {name}" in told and f"3 pictures are kept in {partial}" in told
    assert out.read_bytes() == b"finished" and set(values_of(partial)) == set(NAMES[:3])
    assert command(six, "--output-file", out) == 0
    assert values_of(out) == EXPECTED


def test_a_signal_that_nohup_has_silenced_does_not_end_the_command(
    command: Command, server: Server, six: Path, out: Path
) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        stop_at(server, b"pppp", lambda: (os.kill(os.getpid(), signal.SIGHUP), server.answer(server.requests[-1]))[1])
        assert command(six, "--output-file", out) == 0
    finally:
        signal.signal(signal.SIGHUP, before)
    assert values_of(out) == EXPECTED


@contextmanager
def files_up_to(num_bytes: int) -> Iterator[None]:
    """No file may grow beyond: a disk that is full, as far as a program can tell."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_keeps_the_finished_file_and_what_fitted(
    command: Command, six: Path, out: Path, partial: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(six, "--output-file", out) == 0
    finished, room = out.read_bytes(), out.stat().st_size - 6 * 24
    with files_up_to(room + 2 * 24 + 7):
        assert command(six, "--output-file", out, "--concurrency", 1) == 2
    told = capsys.readouterr().err
    assert f"File too large: '{partial}'" in told and f"2 pictures are kept in {partial}" in told
    assert out.read_bytes() == finished and set(values_of(partial)) == set(NAMES[:2])
    assert command(six, "--output-file", out) == 0
    assert out.read_bytes() == finished


def test_an_error_nobody_thought_of_is_shown_and_loses_nothing(
    command: Command,
    six: Path,
    out: Path,
    partial: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    real = OneFile.add

    def add(self: OneFile, name: str, embedding: Embedding) -> None:
        if name == NAMES[2]:
            raise ZeroDivisionError
        real(self, name, embedding)

    monkeypatch.setattr(OneFile, "add", add)
    with pytest.raises(ZeroDivisionError):
        command(six, "--output-file", out)
    assert set(values_of(partial)) == set(NAMES[:2])
    assert "2 pictures are kept" in capsys.readouterr().err


@pytest.mark.parametrize("broken", [[0], list(range(6))], ids=["one fails", "all fail"])
def test_failed_pictures_do_not_cost_what_a_finished_file_holds(
    command: Command,
    server: Server,
    six: Path,
    out: Path,
    partial: Path,
    capsys: pytest.CaptureFixture[str],
    broken: list[int],
) -> None:
    assert command(six, "--output-file", out) == 0
    finished = out.read_bytes()
    server.refuse |= {b"p" * (n + 1): (422, "undecodable") for n in broken}
    assert command(six, "--output-file", out) == 1
    assert out.read_bytes() == finished
    if len(broken) == 1:
        told = capsys.readouterr().err
        assert f"{out} stays as it was, since it holds 1 pictures that this run did not encode" in told
        assert f"5 pictures are kept in {partial}" in told
    assert partial.exists() == (len(broken) == 1)


def test_failed_pictures_that_the_file_never_held_do_not_keep_it_from_being_renewed(
    command: Command, server: Server, six: Path, out: Path, partial: Path
) -> None:
    server.refuse[b"p"] = (422, "undecodable")
    assert command(six, "--output-file", out) == 1
    assert set(values_of(out)) == set(NAMES[1:])
    assert command(six, "--output-file", out) == 1
    assert set(values_of(out)) == set(NAMES[1:]) and not partial.exists()


def test_a_file_of_another_kind_is_not_replaced_by_a_run_with_failures(
    command: Command, server: Server, six: Path, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out.write_bytes(b"my notes")
    server.refuse[b"p"] = (422, "undecodable")
    assert command(six, "--output-file", out) == 1
    assert out.read_bytes() == b"my notes" and "what it holds cannot be read" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "change", "words"),
    [
        (["--normalize"], {}, "it was made with other options (none)"),
        ([], {"model": "other"}, "it was encoded by m, and the server now has other"),
        ([], {"revision": "r2"}, "another revision or other settings of m"),
    ],
    ids=["options", "model", "revision"],
)
def test_embeddings_of_other_options_or_another_model_are_set_aside_and_never_mixed(
    command: Command,
    server: Server,
    six: Path,
    out: Path,
    partial: Path,
    capsys: pytest.CaptureFixture[str],
    flags: list[str],
    change: dict[str, str],
    words: str,
) -> None:
    stopped_halfway(command, server, six, out)
    kept = partial.read_bytes()
    vars(server).update(change)
    assert command(six, "--output-file", out, *flags) == 0
    told = capsys.readouterr().err
    assert words in told and "out.safetensors.partial.1, and this run starts anew" in told
    assert out.with_name("out.safetensors.partial.1").read_bytes() == kept
    assert {len(request.content) for request in server.requests} == set(range(1, 7))
    expected = {name: hash_of(b"p" * (n + 1) + server.revision.encode()) for n, name in enumerate(NAMES)}
    assert json.loads(metadata_of(out)["keys"]) == expected


@pytest.mark.parametrize("content", [b"", b"x", b"\xff" * 100, b"\x02" + bytes(7) + b"{}"], ids=repr)
def test_a_partial_file_that_is_none_is_set_aside(
    command: Command, six: Path, out: Path, partial: Path, content: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    partial.write_bytes(content)
    assert command(six, "--output-file", out) == 0
    assert values_of(out) == EXPECTED
    assert ("no file that this command can go on from" in capsys.readouterr().err) == bool(content)


def test_a_partial_file_that_is_cut_off_is_set_aside(
    command: Command, server: Server, six: Path, out: Path, partial: Path
) -> None:
    stopped_halfway(command, server, six, out)
    partial.write_bytes(partial.read_bytes()[:-1])
    assert command(six, "--output-file", out) == 0
    assert values_of(out) == EXPECTED


def test_a_picture_that_changed_meanwhile_is_encoded_anew(
    command: Command, server: Server, six: Path, out: Path
) -> None:
    stopped_halfway(command, server, six, out)
    (six / NAMES[1]).write_bytes(b"p" * 50)
    assert command(six, "--output-file", out) == 0
    assert values_of(out) == EXPECTED | {NAMES[1]: 50.0}
    assert sorted(len(request.content) for request in server.requests) == [1, 4, 5, 6, 50]


def test_a_picture_that_is_gone_meanwhile_is_not_in_the_file(
    command: Command, server: Server, six: Path, out: Path
) -> None:
    stopped_halfway(command, server, six, out)
    (six / NAMES[0]).unlink()
    assert command(six, "--output-file", out) == 0
    assert values_of(out) == {name: EXPECTED[name] for name in NAMES[1:]}


def test_a_run_of_many_more_pictures_goes_on_too(command: Command, server: Server, six: Path, out: Path) -> None:
    stopped_halfway(command, server, six, out)
    for n in range(200):
        (six / f"more-{n:03}.png").write_bytes(b"more" + bytes(n))
    assert command(six, "--output-file", out) == 0
    assert len(values_of(out)) == 206 and values_of(out).items() >= EXPECTED.items()
    assert len(server.requests) == 204


def test_a_server_that_fails_the_proof_stops_the_run_and_keeps_all(
    command: Command, server: Server, six: Path, out: Path, partial: Path
) -> None:
    stopped_halfway(command, server, six, out)
    server.refuse = dict.fromkeys([b"p", b"pp", b"ppp"], (500, "internal"))
    assert command(six, "--output-file", out) == 2
    assert len(values_of(partial)) == 3 and not out.exists()


def test_a_second_command_does_not_write_into_the_first_ones_file(
    command: Command, server: Server, six: Path, out: Path, partial: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with closing(OneFile(out, NAMES, {}, print)):
        assert command(six, "--output-file", out) == 2
    assert f"another command writes {partial} now" in capsys.readouterr().err
    assert server.requests == []


def test_a_link_keeps_leading_where_it_led(command: Command, six: Path, out: Path, tmp_path: Path) -> None:
    (tmp_path / "large-disk").mkdir()
    out.symlink_to(tmp_path / "large-disk" / "real.safetensors")
    assert command(six, "--output-file", out) == 0
    assert out.is_symlink() and values_of(tmp_path / "large-disk" / "real.safetensors") == EXPECTED


def test_folders_above_the_file_are_made_and_no_message_shows_a_temporary_name(
    command: Command, six: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(six, "--output-file", tmp_path / "a" / "b" / "out.safetensors") == 0
    assert values_of(tmp_path / "a" / "b" / "out.safetensors") == EXPECTED
    capsys.readouterr()
    assert command(six, "--output-file", six / NAMES[0] / "out.safetensors") == 2
    assert command(six, "--output-dir", six / NAMES[0] / "out") == 2
    told = capsys.readouterr().err
    assert str(six / NAMES[0]) in told and "tmp/tmp" not in told and ".part'" not in told


def test_what_is_no_regular_file_is_told_and_the_others_are_encoded(
    command: Command, six: Path, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(six / "pipe.jpg")
    (six / "dangling.jpg").symlink_to("nowhere")
    (six / "loop.jpg").symlink_to("loop.jpg")
    (six / "zero.jpg").symlink_to("/dev/zero")
    (six / "folder.jpg").mkdir()
    assert command(six, "--output-file", out) == 1
    told = capsys.readouterr().err
    assert f"{six / 'pipe.jpg'}: this is a named pipe; only regular files are read" in told
    assert f"{six / 'dangling.jpg'}: No such file or directory" in told
    assert f"{six / 'loop.jpg'}: Too many levels of symbolic links" in told
    assert f"{six / 'zero.jpg'}: this is a device; only regular files are read" in told
    assert "4 of 10 pictures failed" in told and values_of(out) == EXPECTED


def test_a_folder_that_cannot_be_looked_into_is_told(
    command: Command, six: Path, out: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (six / "secret").mkdir()
    real = os.scandir

    def scandir(path: Any) -> Any:
        if Path(path).name == "secret":
            raise PermissionError(13, "Permission denied", path)
        return real(path)

    monkeypatch.setattr("os.scandir", scandir)
    assert command(six, "--recursive", "--output-file", out) == 1
    assert f"{six / 'secret'}: Permission denied" in capsys.readouterr().err
    assert values_of(out) == EXPECTED


def test_a_stopped_folder_has_a_manifest_of_what_is_in_it(
    command: Command, server: Server, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.refuse[b"second"] = (401, "unauthorized")
    folder = tmp_path / "out"
    assert command(photos, "--recursive", "--output-dir", folder, "--concurrency", 1) == 2
    assert json.loads((folder / "manifest.json").read_text())["tokens"] == {"a.png": 2}
    assert f"1 pictures are in {folder}" in capsys.readouterr().err


def test_a_stopped_folder_does_not_lose_what_its_manifest_told(
    command: Command, server: Server, photos: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "out"
    assert command(photos, "--recursive", "--output-dir", folder) == 0
    server.refuse[b"second"] = (401, "unauthorized")
    assert command(photos, "--recursive", "--output-dir", folder, "--concurrency", 1) == 2
    assert set(json.loads((folder / "manifest.json").read_text())["keys"]) == set(PICTURES)


def test_a_stopped_folder_leaves_a_manifest_of_another_model(
    command: Command, server: Server, photos: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "out"
    assert command(photos, "--recursive", "--output-dir", folder) == 0
    before = (folder / "manifest.json").read_bytes()
    server.model, server.refuse[b"second"] = "other", (401, "unauthorized")
    assert command(photos, "--recursive", "--output-dir", folder, "--concurrency", 1) == 2
    assert (folder / "manifest.json").read_bytes() == before
    assert json.loads((folder / "manifest.json.partial").read_text())["model"] == "other"
    server.refuse.clear()
    assert command(photos, "--recursive", "--output-dir", folder) == 0
    assert json.loads((folder / "manifest.json").read_text())["model"] == "other"


def test_one_name_that_is_too_long_does_not_end_a_folders_run(
    command: Command, six: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    long = "x" * 250 + ".png"
    (six / long).write_bytes(b"long")
    assert command(six, "--output-dir", tmp_path / "out") == 1
    assert f"{long}: File name too long" in capsys.readouterr().err
    assert set(json.loads((tmp_path / "out" / "manifest.json").read_text())["keys"]) == set(NAMES)


def embedding_of(content: bytes) -> Embedding:
    rows = np.full((1 + len(content) % 3, 2), len(content), np.float32)
    grid, usage = GridTHW(1, 2, 2 * len(rows)), Usage(1, 4 * len(rows), len(rows))
    return Embedding(rows, grid, len(rows), "m", "float32", hash_of(content), hash_of(content), (), None, {}, usage)


@given(st.integers(1, 400), st.integers(0, 400))
@settings(max_examples=30, deadline=None)
def test_a_killed_process_leaves_most_of_what_it_had(
    tmp_path_factory: pytest.TempPathFactory, num: int, room: int
) -> None:
    path = tmp_path_factory.mktemp("killed") / "out.safetensors"
    names = [str(n) for n in range(num + room)]
    with closing(OneFile(path, names, {}, print)) as first:
        for name in names[:num]:
            first.add(name, embedding_of(name.encode()))
    with closing(OneFile(path, names, {}, pytest.fail)) as second:
        assert len(second.kept) >= num * 4 // 5
        assert all(second.kept[name] == hash_of(name.encode()) for name in second.kept)


RUNS = st.lists(st.tuples(st.lists(st.text(max_size=9), unique=True, max_size=8), st.integers(0, 9)), max_size=5)


@given(RUNS, st.lists(st.text(max_size=9), unique=True, min_size=1, max_size=12), st.data())
@settings(max_examples=150, deadline=None)
def test_whatever_runs_came_before_the_finished_file_holds_what_the_last_one_asked_for(
    tmp_path_factory: pytest.TempPathFactory, runs: list[tuple[list[str], int]], wanted: list[str], data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("runs") / "out.safetensors"
    contents: dict[str, bytes] = {}
    for names, stop in [*runs, (wanted, len(wanted))]:
        with closing(OneFile(path, names, {"output": None}, pytest.fail)) as output:
            for name in names[:stop]:
                contents[name] = data.draw(st.binary(max_size=9))
                if output.kept.get(name) != hash_of(contents[name]):
                    output.add(name, embedding_of(contents[name]))
            if names is wanted:
                assert output.finish(0) is None
            else:
                output.keep()
    found = tensors_of(path)
    assert set(found) == set(wanted)
    for name in wanted:
        assert found[name]["data"] == embedding_of(contents[name]).values.tobytes()
    assert json.loads(metadata_of(path)["sha256"]) == {name: hash_of(contents[name]) for name in wanted}
    assert [each.name for each in path.parent.iterdir()] == [path.name]
