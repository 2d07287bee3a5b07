"""Shared storage: whole files or none, bounded, and never a young one taken away."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from foveal.errors import ConfigurationError, FovealError, Overloaded, TooLarge, Unavailable
from foveal.handover import folder as files
from foveal.handover.ec_file import ec_file
from foveal.handover.folder import FILE, check_folder
from tests.fakes import SPEC
from tests.unit.handover.holding import encoded, key_of
from tests.unit.handover.shelf import ARENA, KEPT, PROMISED, Shelf, keys_of


async def test_a_file_is_where_vllm_looks_and_holds_the_rows(shelf: Shelf) -> None:
    await shelf.publish("a")
    place = shelf.folder / key_of("a")
    assert [path.name for path in place.iterdir()] == ["encoder_cache.safetensors"]
    tensors = dict(safetensors.deserialize((place / FILE).read_bytes()))
    assert tensors["ec_cache"]["shape"] == [512, 2]
    assert bytes(tensors["ec_cache"]["data"]) == bytes([4096 % 251]) * 4096


async def test_publishing_again_only_renews_the_time(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    await shelf.publish("a")
    shelf.clock.now += 500
    monkeypatch.setattr(files, "write", None)
    await shelf.publish("a")
    path = shelf.folder / key_of("a") / FILE
    assert path.stat().st_mtime == shelf.clock.now + PROMISED
    shelf.clock.now += 500
    await shelf.storage.clean()
    assert path.exists()


async def test_a_file_that_somebody_removed_is_written_again(shelf: Shelf) -> None:
    await shelf.publish("a")
    (shelf.folder / key_of("a") / FILE).unlink()
    await shelf.publish("a")
    assert shelf.names() == keys_of("a")


async def test_another_picture_under_the_same_name_replaces_the_file(shelf: Shelf) -> None:
    await shelf.publish("a", content="first")
    await shelf.publish("a", content="second")
    with safetensors.safe_open(shelf.folder / key_of("a") / FILE, "numpy") as file:
        assert file.metadata()["content_key"] == key_of("second")
    assert shelf.storage.shown()["entries"] == 1


async def test_what_is_too_old_is_removed_with_its_folder(shelf: Shelf) -> None:
    await shelf.publish("a")
    shelf.clock.now += KEPT - 1
    await shelf.publish("b")
    await shelf.storage.clean()
    assert shelf.names() == keys_of("ab")
    shelf.clock.now += 1
    await shelf.storage.clean()
    assert {place.name for place in shelf.folder.iterdir()} == keys_of("b")


async def test_the_oldest_makes_room_once_its_promised_time_is_over(shelf: Shelf) -> None:
    for name in "abc":
        await shelf.publish(name)
        shelf.clock.now += 10
    with pytest.raises(Overloaded, match="--ec-shared-storage-bytes"):
        await shelf.publish("d")
    assert shelf.names() == keys_of("abc")
    shelf.clock.now += PROMISED - 25
    await shelf.publish("d")
    assert shelf.names() == keys_of("bcd")
    assert shelf.storage.shown()["bytes"] <= shelf.storage.max_bytes


async def test_what_another_server_renewed_is_not_removed(shelf: Shelf) -> None:
    await shelf.publish("a")
    path = shelf.folder / key_of("a") / FILE
    os.utime(path, (shelf.clock.now + 300, shelf.clock.now + 300))
    shelf.clock.now += KEPT
    await shelf.storage.clean()
    assert path.exists()
    shelf.clock.now += 300
    await shelf.storage.clean()
    assert not path.exists()


async def test_a_file_larger_than_all_of_it_is_refused_for_good(shelf: Shelf) -> None:
    with pytest.raises(TooLarge, match="--ec-shared-storage-bytes"):
        await shelf.publish("a", 64 << 10)
    assert list(shelf.folder.iterdir()) == []


@pytest.mark.parametrize(
    ("code", "refusal"), [(errno.ENOSPC, Overloaded), (errno.EDQUOT, Overloaded), (errno.EIO, Unavailable)]
)
async def test_a_write_that_fails_half_way_leaves_nothing(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch, code: int, refusal: type[FovealError]
) -> None:
    real, calls = os.writev, []

    def broken(descriptor: int, buffers: list[memoryview]) -> int:
        calls.append(descriptor)
        if len(calls) > 1:
            raise OSError(code, os.strerror(code))
        return real(descriptor, [buffers[0][:100]])

    monkeypatch.setattr(os, "writev", broken)
    with pytest.raises(refusal):
        await shelf.publish("a")
    assert list(shelf.folder.iterdir()) == []
    assert (shelf.storage.shown()["entries"], shelf.storage.shown()["bytes"]) == (0, 0)
    monkeypatch.undo()
    await shelf.publish("a")
    assert shelf.names() == keys_of("a")


async def test_short_writes_are_gone_on_with(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.writev
    monkeypatch.setattr(os, "writev", lambda descriptor, buffers: real(descriptor, [buffers[0][:333]]))
    await shelf.publish("a")
    content = (shelf.folder / key_of("a") / FILE).read_bytes()
    assert content == b"".join(map(bytes, ec_file(SPEC, encoded(ARENA, "a", 4096), key_of("a"))))


async def test_the_file_appears_whole_while_readers_look(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []
    real = os.fsync
    path = shelf.folder / key_of("a") / FILE

    def looking(descriptor: int) -> None:
        seen.append(path.exists())
        real(descriptor)

    monkeypatch.setattr(os, "fsync", looking)
    await shelf.publish("a")
    assert seen == [False] and path.exists()


async def test_a_caller_who_leaves_does_not_break_the_file(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, real = threading.Event(), files.write

    def slow(*args: object) -> files.Published:
        gate.wait()
        return real(*args)  # type: ignore[arg-type]

    slow.__name__ = "write"
    monkeypatch.setattr(files, "write", slow)
    first = asyncio.create_task(shelf.publish("a"))
    second = asyncio.create_task(shelf.publish("a"))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.sleep(0)
    gate.set()
    await second
    await shelf.storage.close()
    assert shelf.names() == keys_of("a") and shelf.storage.shown()["entries"] == 1


async def test_files_of_an_earlier_run_are_found_and_those_of_others_left_alone(shelf: Shelf, tmp_path: Path) -> None:
    await shelf.publish("a")
    shelf.clock.now += 50
    await shelf.publish("b")
    theirs = shelf.folder / key_of("vllm")
    theirs.mkdir()
    (theirs / FILE).write_bytes(safetensors.numpy.save({"ec_cache": np.ones((2, 2), np.float32)}))
    (shelf.folder / "notes").mkdir()
    (shelf.folder / "notes" / FILE).write_bytes((shelf.folder / key_of("a") / FILE).read_bytes())
    part = shelf.folder / key_of("b") / ".foveal-0123"
    part.write_bytes(b"half")
    os.utime(part, (0, 0))

    later = Shelf(tmp_path)
    later.clock.now = shelf.clock.now + KEPT - 60
    await later.storage.open()
    assert later.storage.shown()["entries"] == 2 and not part.exists()
    later.clock.now += KEPT
    await later.storage.clean()
    assert later.names() == {key_of("vllm"), "notes"}


def test_a_folder_that_is_not_there_or_not_writable_is_named_at_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_folder(tmp_path)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ConfigurationError, match="no such folder"):
        check_folder(tmp_path / "missing")

    def refused(*args: object, **keywords: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "touch", refused)
    with pytest.raises(ConfigurationError, match="cannot be written: Permission denied"):
        check_folder(tmp_path)


async def test_a_folder_that_hangs_keeps_nobody_from_ending(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, release, threads = threading.Semaphore(0), threading.Event(), list[threading.Thread]()

    def hang(*given: object) -> None:
        threads.append(threading.current_thread())
        begun.release()
        release.wait()
        raise OSError(errno.EIO, "the disk is gone")

    monkeypatch.setattr(files, "write", hang)
    monkeypatch.setattr("foveal.handover.storage.CLOSE_SECONDS", 0.0)
    publishing = asyncio.create_task(shelf.publish("a"))
    await asyncio.to_thread(begun.acquire)
    await shelf.storage.close()
    assert not publishing.done() and all(thread.daemon for thread in threads)  # a process ends without those
    release.set()
    with pytest.raises(Unavailable):
        await publishing
