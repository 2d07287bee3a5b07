"""A file takes its name when it is complete; until then, what stood there stays."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from foveal.files import replacing, write_text


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_is_there_when_it_is_complete_and_not_before(tmp_path: Path) -> None:
    path = tmp_path / "new" / "x.json"
    with replacing(path) as file:
        file.write(b"whole")
        assert not path.exists()
    assert path.read_bytes() == b"whole" and names_in(path.parent) == ["x.json"]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), ZeroDivisionError(), KeyboardInterrupt()])
def test_what_stood_there_stays_when_writing_fails(tmp_path: Path, error: BaseException) -> None:
    (tmp_path / "x.json").write_bytes(b"before")
    with pytest.raises(type(error)), replacing(tmp_path / "x.json") as file:
        file.write(b"ha")
        raise error
    assert (tmp_path / "x.json").read_bytes() == b"before" and names_in(tmp_path) == ["x.json"]


def test_errors_name_the_file_and_nothing_temporary(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "file" / "x", tmp_path / "folder", tmp_path / ("x" * 300)):
        with pytest.raises(OSError) as caught:
            write_text(path, "text")
        assert ".part" not in str(caught.value) and str(tmp_path) in str(caught.value)
    with pytest.raises(OSError, match=r"No space left on device: '.*/x.json'"), replacing(tmp_path / "x.json"):
        raise OSError(28, "No space left on device")
    assert names_in(tmp_path) == ["file", "folder"]


def test_an_error_about_another_file_keeps_that_files_name(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="other"), replacing(tmp_path / "x.json"):
        (tmp_path / "other").read_bytes()


def test_a_link_keeps_leading_where_it_led_and_the_umask_decides_the_mode(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("real")
    before = os.umask(0o027)
    try:
        write_text(tmp_path / "link", "text")
    finally:
        os.umask(before)
    assert (tmp_path / "link").is_symlink() and (tmp_path / "real").read_text() == "text"
    assert stat.S_IMODE((tmp_path / "real").stat().st_mode) == 0o640


def test_a_pipe_is_written_as_it_is() -> None:
    reads, writes = os.pipe()
    write_text(Path(f"/dev/fd/{writes}"), "text")
    os.close(writes)
    with open(reads) as pipe:
        assert pipe.read() == "text"
