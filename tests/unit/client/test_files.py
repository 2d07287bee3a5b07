"""Which files are opened for a picture, and that reading them is part of a call's timeout."""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from foveal_client import AsyncClient, DeadlineExceeded, _files
from foveal_client._files import CHUNK_BYTES, ReadingThreads, read_file

Twin = Callable[..., Any]


def no_answer(_: httpx.Request) -> httpx.Response:
    pytest.fail("nothing should be sent")


def make_fifo(path: Path) -> None:
    os.mkfifo(path)


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(path))


def make_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def make_dangling_link(path: Path) -> None:
    path.symlink_to("nowhere.jpg")


def make_loop(path: Path) -> None:
    path.symlink_to(path.name)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (make_fifo, "this is a named pipe; only regular files are read"),
        (make_socket, "this is a socket; only regular files are read"),
        (make_device, "this is a device; only regular files are read"),
        (Path.mkdir, "this is a folder, not a picture"),
        (make_dangling_link, "No such file"),
        (make_loop, "Too many levels of symbolic links"),
    ],
)
@pytest.mark.parametrize("kind", [str, Path])
async def test_what_is_no_regular_file_is_an_os_error_at_once(
    twin: Twin, tmp_path: Path, make: Callable[[Path], None], words: str, kind: type
) -> None:
    make(tmp_path / "x.jpg")
    with pytest.raises(OSError, match=words) as caught:
        await twin("encode", no_answer, kind(tmp_path / "x.jpg"))
    assert "x.jpg" in str(caught.value)


def test_a_link_to_a_regular_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "cat.jpg").write_bytes(b"cat")
    (tmp_path / "link.jpg").symlink_to("cat.jpg")
    assert read_file(tmp_path / "link.jpg") == b"cat"


def test_a_name_that_becomes_a_pipe_after_the_first_look_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "x.jpg")
    (tmp_path / "before.jpg").write_bytes(b"")
    before = (tmp_path / "before.jpg").stat()
    monkeypatch.setattr(_files.os, "stat", lambda _: before)
    with pytest.raises(OSError, match="named pipe"):
        read_file(tmp_path / "x.jpg")


@pytest.mark.parametrize("num_bytes", [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES + 5])
def test_files_of_every_length_come_whole(tmp_path: Path, num_bytes: int) -> None:
    content = os.urandom(num_bytes)
    (tmp_path / "x").write_bytes(content)
    assert read_file(tmp_path / "x") == content


@pytest.mark.parametrize("change", [lambda f: f.write(b"more"), lambda f: f.truncate(5)], ids=["grows", "shrinks"])
def test_a_file_that_changes_while_it_is_read_is_an_error(tmp_path: Path, change: Callable[[Any], object]) -> None:
    (tmp_path / "x").write_bytes(bytes(2 * CHUNK_BYTES))
    with (tmp_path / "x").open("r+b") as other:
        other.seek(0, os.SEEK_END)
        calls = itertools.count()

        def meanwhile() -> None:
            if next(calls):  # the first comes before the file is opened
                change(other)
                other.flush()

        with pytest.raises(OSError, match="changed while it was read"):
            read_file(tmp_path / "x", meanwhile)


def test_a_file_of_more_bytes_than_memory_is_an_os_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x").write_bytes(b"x")

    def read(*_: object) -> bytes:
        raise MemoryError

    monkeypatch.setattr(_files, "_read", read)
    with pytest.raises(OSError, match="more than there is memory"):
        read_file(tmp_path / "x")


async def test_the_timeout_passes_while_a_large_file_is_read(twin: Any, time: Any, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(bytes(4 * CHUNK_BYTES))

    class SlowFile:
        def __fspath__(self) -> str:
            time.at += 1000  # as long as the disk took
            return str(tmp_path / "x")

    os.PathLike.register(SlowFile)
    with pytest.raises(DeadlineExceeded):
        await twin("encode", no_answer, SlowFile(), timeout=30)


async def test_a_disk_that_hangs_ends_with_the_timeout_and_holds_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    hangs = threading.Event()
    monkeypatch.setattr("foveal_client._images.read_file", lambda *_: hangs.wait())
    async with AsyncClient("http://host", transport=httpx.MockTransport(no_answer)) as client:
        with pytest.raises(DeadlineExceeded, match="not read within the timeout"):
            await client.encode("cat.jpg", timeout=0.01)
    reading = [thread for thread in threading.enumerate() if thread.name == "foveal-read"]
    assert reading and all(thread.daemon for thread in reading), "the program could not end"
    hangs.set()


async def test_a_file_systems_own_timeout_is_not_taken_for_the_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    def timed_out(*_: object) -> bytes:
        raise TimeoutError("the file server does not answer")

    monkeypatch.setattr("foveal_client._images.read_file", timed_out)
    async with AsyncClient("http://host", transport=httpx.MockTransport(no_answer)) as client:
        with pytest.raises(TimeoutError, match="file server"):
            await client.encode("cat.jpg")


async def test_at_most_so_many_threads_read_and_those_given_up_keep_their_seats() -> None:
    threads, goes_on, running = ReadingThreads(2), threading.Event(), []

    def work() -> None:
        running.append(1)
        goes_on.wait()

    tasks = [asyncio.create_task(threads.run(work, 30)) for _ in range(5)]
    while len(running) < 2:
        await asyncio.sleep(0)
    tasks[0].cancel()
    await asyncio.wait(tasks[:1])
    assert len(running) == 2
    goes_on.set()
    await asyncio.gather(*tasks[1:])
    assert len(running) == 5


async def test_threads_are_used_again_and_end_when_there_is_nothing_to_read(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = ReadingThreads()
    names = {await threads.run(threading.get_ident, 30) for _ in range(20)}
    assert len(names) == 1
    monkeypatch.setattr(_files, "IDLE_SECONDS", 0.0)
    assert await threads.run(threading.get_ident, 30) in names
    while threads._num_threads:
        await asyncio.sleep(0)
    assert await threads.run(lambda: 7, 30) == 7
