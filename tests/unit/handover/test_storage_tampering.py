"""What others do to published files: a name that was promised is there as it was written, or nobody is told of it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from foveal.errors import Unavailable
from foveal.handover.folder import FILE
from tests.unit.handover.holding import key_of
from tests.unit.handover.shelf import KEPT, PROMISED, Shelf

Spoil = Callable[[Path, Path], None]
"""Of a file, with a place outside of the folder at hand."""


def truncated(path: Path, outside: Path) -> None:
    os.truncate(path, 100)


def overwritten(path: Path, outside: Path) -> None:
    path.write_bytes(b"tampered")


def overwritten_in_its_length(path: Path, outside: Path) -> None:
    with path.open("r+b") as file:
        file.seek(-8, os.SEEK_END)
        file.write(b"tampered")


def overwritten_and_its_time_set_back(path: Path, outside: Path) -> None:
    before = path.stat()
    overwritten_in_its_length(path, outside)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def replaced_by_another_file(path: Path, outside: Path) -> None:
    other = outside / "other"
    other.write_bytes(b"x" * path.stat().st_size)
    other.replace(path)


def replaced_by_a_link(path: Path, outside: Path) -> None:
    other = outside / "victim"
    other.write_bytes(path.read_bytes())
    path.unlink()
    path.symlink_to(other)


def replaced_by_a_dangling_link(path: Path, outside: Path) -> None:
    path.unlink()
    path.symlink_to(outside / "nothing")


def replaced_by_a_pipe(path: Path, outside: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def removed(path: Path, outside: Path) -> None:
    path.unlink()


def removed_with_its_folder(path: Path, outside: Path) -> None:
    shutil.rmtree(path.parent)


SPOILED = [
    truncated,
    overwritten,
    overwritten_in_its_length,
    overwritten_and_its_time_set_back,
    replaced_by_another_file,
    replaced_by_a_link,
    replaced_by_a_dangling_link,
    replaced_by_a_pipe,
    removed,
    removed_with_its_folder,
]


@pytest.fixture
def outside(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("outside")


def state_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


@pytest.mark.parametrize("spoil", SPOILED)
@pytest.mark.parametrize("after", [0, PROMISED + 10])
async def test_a_file_that_is_not_as_it_was_written_is_written_anew(
    shelf: Shelf, outside: Path, spoil: Spoil, after: float
) -> None:
    await shelf.publish("a")
    spoil(shelf.path("a"), outside)
    before = state_of(outside)
    shelf.clock.now += after
    await shelf.publish("a")
    assert shelf.path("a").read_bytes() == shelf.content("a") and not shelf.path("a").is_symlink()
    assert state_of(outside) == before
    assert (shelf.storage.shown()["entries"], shelf.storage.shown()["bytes"]) == (1, len(shelf.content("a")))


def file_is_a_folder(place: Path, outside: Path) -> None:
    (place / FILE).mkdir(parents=True)


def place_is_a_file(place: Path, outside: Path) -> None:
    place.write_text("somebody's")


def place_is_a_link(place: Path, outside: Path) -> None:
    place.symlink_to(outside)


def place_is_a_link_to_nothing(place: Path, outside: Path) -> None:
    place.symlink_to(outside / "nothing")


@pytest.mark.parametrize("block", [file_is_a_folder, place_is_a_file, place_is_a_link, place_is_a_link_to_nothing])
@pytest.mark.parametrize("is_known", [False, True], ids=["at first", "when held again"])
async def test_what_stands_in_the_way_is_left_alone_and_the_request_refused(
    shelf: Shelf, outside: Path, block: Spoil, is_known: bool
) -> None:
    place = shelf.folder / key_of("a")
    if is_known:
        await shelf.publish("a")
        shutil.rmtree(place)
    block(place, outside)
    shape = os.lstat(place).st_mode
    with pytest.raises(Unavailable, match=r"shared storage failed: .* its operator must look after it"):
        await shelf.publish("a")
    assert os.lstat(place).st_mode == shape and os.listdir(outside) == []
    shelf.clock.now += KEPT
    await shelf.storage.clean()
    assert os.lstat(place).st_mode == shape and shelf.storage.shown()["entries"] == 0


@pytest.mark.parametrize("spoil", [replaced_by_another_file, replaced_by_a_link, replaced_by_a_pipe])
async def test_what_another_program_put_in_the_place_of_a_file_is_not_removed(
    shelf: Shelf, outside: Path, spoil: Spoil
) -> None:
    await shelf.publish("a")
    spoil(shelf.path("a"), outside)
    shelf.clock.now += KEPT
    await shelf.storage.clean()
    assert FILE in os.listdir(shelf.path("a").parent) and shelf.storage.shown()["entries"] == 0


async def test_nothing_outside_of_the_folder_is_removed_through_a_link(shelf: Shelf, outside: Path) -> None:
    await shelf.publish("a")
    place = shelf.folder / key_of("a")
    shutil.move(place, outside / "moved")
    place.symlink_to(outside / "moved")
    shelf.clock.now += KEPT
    await shelf.storage.clean()
    assert (outside / "moved" / FILE).read_bytes() == shelf.content("a")


@pytest.mark.parametrize("spoil", [truncated, overwritten, replaced_by_a_link, replaced_by_a_pipe])
async def test_what_is_no_whole_file_is_not_taken_on_at_start(
    shelf: Shelf, tmp_path: Path, outside: Path, spoil: Spoil
) -> None:
    for name in "ab":
        await shelf.publish(name)
    spoil(shelf.path("a"), outside)
    (tmp_path / key_of("c")).symlink_to(outside)
    later = Shelf(tmp_path)
    await later.storage.open()
    assert later.storage.shown()["entries"] == 1
    await later.publish("a")
    assert later.path("a").read_bytes() == shelf.content("a")
