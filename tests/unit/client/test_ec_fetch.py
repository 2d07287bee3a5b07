"""Fetching one embedding: found, late, never, wrong. No vLLM, no network, no waiting."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import gc
import mmap
import os
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save

from foveal_client._ec.fetch import FILE, Fetcher, Need, PickupFailed
from foveal_client._ec.memory import MemoryFile, read_rows
from foveal_client._ec.settings import PickupSettings, RowShape
from foveal_client._errors import InvalidResponse
from foveal_client._retry import Clock

KEY = "ab" * 32
NEED = Need(KEY, (1, 4, 6), 8, 2)


def file_of(values: Any = None, *, key: str = KEY, grid: tuple[int, ...] = (1, 4, 6), name: str = "ec_cache") -> bytes:
    values = np.full((6, 8), 0.5, ml_dtypes.bfloat16) if values is None else values
    return save({name: values, "grid_thw": np.array([grid], np.int64)}, {"key": key, "model": "m"})


def settings_of(**extra: Any) -> PickupSettings:
    return PickupSettings.of({"url": "http://foveal", "timeout_seconds": 10, **extra})


Answer = Callable[[httpx.Request], httpx.Response]


async def fetch(answer: Answer, time: Any, need: Need = NEED, **extra: Any) -> MemoryFile:
    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as http:
        return await Fetcher(settings_of(**extra), http, time.clock()).fetch(need)


def always(status: int, content: bytes = b"") -> Answer:
    return lambda request: httpx.Response(status, content=content)


def nobody(request: httpx.Request) -> httpx.Response:
    raise AssertionError(f"{request.url} was asked")


async def test_rows_that_are_there_come_as_sent_and_sealed(time: Any) -> None:
    asked = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(str(request.url))
        return httpx.Response(200, content=file_of())

    file = await fetch(answer, time)
    assert asked == [f"http://foveal/embeddings/{KEY}"]
    rows = read_rows(file.path)
    assert (rows.shape, rows.dtype.name, rows[0, 0]) == ((6, 8), "bfloat16", 0.5)
    with pytest.raises(PermissionError):
        file.write(b"more")


async def test_what_a_worker_has_mapped_outlives_the_file_and_is_its_own(time: Any) -> None:
    file = await fetch(always(200, file_of()), time)
    rows, again = read_rows(file.path), read_rows(file.path)
    file.close()
    rows[:] = 7
    assert again[0, 0] == 0.5


async def test_a_late_embedding_is_waited_for(time: Any) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, content=file_of()) if time.at > 1003 else httpx.Response(404)

    assert (await fetch(answer, time)).num_bytes == len(file_of())
    assert max(time.waits) <= 0.5


@pytest.mark.parametrize(
    ("answer", "why"),
    [(always(404), "not there"), (always(503), "answered 503"), (always(302), "answered 302")],
)
async def test_one_that_never_comes_fails_at_the_timeout_and_says_why(answer: Answer, why: str, time: Any) -> None:
    with pytest.raises(PickupFailed, match=f"within 10 s: .*{why}"):
        await fetch(answer, time)
    assert 9 < sum(time.waits) <= 10


@pytest.mark.parametrize("status", [400, 401, 403, 422])
async def test_a_refusal_that_waiting_does_not_mend_fails_at_once(status: int, time: Any) -> None:
    with pytest.raises(PickupFailed, match=str(status)):
        await fetch(always(status), time)
    assert time.waits == []


async def test_a_server_that_restarts_is_waited_for(time: Any) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        if time.at < 1002:
            raise httpx.ConnectError("refused")
        return httpx.Response(200, content=file_of())

    await fetch(answer, time)


class _Breaking(httpx.AsyncByteStream):
    async def __aiter__(self) -> Any:
        yield file_of()[:100]
        raise httpx.ReadError("reset")


async def test_half_an_answer_is_forgotten_before_the_next_try(time: Any) -> None:
    answers = [httpx.Response(200, stream=_Breaking()), httpx.Response(200, content=file_of())]
    file = await fetch(lambda request: answers.pop(0), time)
    assert file.num_bytes == len(file_of())


async def test_several_servers_are_asked_in_turn(time: Any) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, content=file_of()) if request.url.host == "two" else httpx.Response(404)

    await fetch(answer, time, url="http://one,http://two")
    assert time.waits == []


WRONG = np.full((6, 8), 0.5, np.float32)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (file_of(key="cd" * 32), "holds the key cdcd"),
        (file_of(grid=(1, 6, 4)), "grid is"),
        (file_of(WRONG[:5]), "not 5 rows"),
        (file_of(np.ones((6, 7), np.float32)), "8 columns, not 7"),
        (file_of(np.where(np.eye(6, 8), np.nan, WRONG).astype(np.float32)), "not finite"),
        (file_of(WRONG.astype(np.int64)), "not int64"),
        (file_of(WRONG[None]), "tokens, width"),
        (file_of(name="other"), "lacks ec_cache"),
        (file_of()[:-1], "the tensors end"),
        (b"", "at least 8 bytes"),
        (b"\x80\x04." * 30, "the header claims"),
        (file_of(np.ones((6, 30_000), np.float32)), "longer than"),
    ],
)
@pytest.mark.parametrize("place", ["server", "folder"])
async def test_what_is_wrong_fails_this_pick_up_at_once(
    content: bytes, why: str, place: str, time: Any, tmp_path: Path
) -> None:
    with pytest.raises(PickupFailed, match=why):
        if place == "server":
            await fetch(always(200, content), time)
        publish(tmp_path, content)
        await fetch(nobody, time, shared_storage_path=str(tmp_path))
    assert time.waits == []


def publish(folder: Path, content: bytes, key: str = KEY) -> Path:
    path = folder / key / FILE
    path.parent.mkdir()
    path.write_bytes(content)
    return path


async def test_shared_storage_is_looked_at_first(time: Any, tmp_path: Path) -> None:
    publish(tmp_path, file_of())
    file = await fetch(nobody, time, shared_storage_path=str(tmp_path))
    assert read_rows(file.path)[5, 7] == 0.5


async def test_a_file_that_is_spoiled_later_does_not_change_what_was_checked(time: Any, tmp_path: Path) -> None:
    path = publish(tmp_path, file_of())
    file = await fetch(nobody, time, shared_storage_path=str(tmp_path))
    os.truncate(path, 0)
    assert read_rows(file.path)[5, 7] == 0.5


async def test_what_shared_storage_lacks_comes_from_the_server(time: Any, tmp_path: Path) -> None:
    await fetch(always(200, file_of()), time, shared_storage_path=str(tmp_path))


async def test_with_a_folder_alone_no_server_is_asked(
    time: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(PickupFailed, match="no such file"):
        await fetch(nobody, time, url=None, shared_storage_path=str(tmp_path))


PLACES = ("folder", "server")
OPERATIONS = {
    "open": (os, "open", ("folder",)),
    "memfd_create": (os, "memfd_create", PLACES),
    "sendfile": (os, "sendfile", ("folder",)),
    "writev": (os, "writev", ("server",)),
    "seal": (MemoryFile, "seal", PLACES),
    "check": (MemoryFile, "read", PLACES),
}
STUCK = [(place, name) for name, (_, _, places) in OPERATIONS.items() for place in places]


class Stuck:
    """The first call of one operation stands in the kernel until it is let go; on the loop itself it is an error."""

    def __init__(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self._loop = threading.current_thread()
        self.begun, self.release = threading.Semaphore(0), threading.Event()
        self.num_stuck, self.most = 0, 1
        owner, attribute, _ = OPERATIONS[name]
        self._real = getattr(owner, attribute)
        monkeypatch.setattr(owner, attribute, lambda *given, **named: self(*given, **named))

    def __call__(self, *given: Any, **named: Any) -> Any:
        if threading.current_thread() is self._loop:
            self.begun.release()
            raise AssertionError("the loop itself would wait in the kernel")
        if self.num_stuck < self.most:
            self.num_stuck += 1
            self.begun.release()
            self.release.wait()
        return self._real(*given, **named)


@contextlib.asynccontextmanager
async def fetching(clock: Clock | None = None, **extra: Any) -> AsyncIterator[Fetcher]:
    async with httpx.AsyncClient(transport=httpx.MockTransport(always_right)) as http:
        fetcher = Fetcher(settings_of(**extra), http, clock)
        yield fetcher
        fetcher.close()


def always_right(request: httpx.Request) -> httpx.Response:
    return httpx.Response(200, content=file_of(key=request.url.path.rpartition("/")[2]))


def place_of(place: str, folder: Path, *keys: str) -> dict[str, Any]:
    """Settings under which the rows of these keys are in that place alone."""
    if place == "server":
        return {}
    for key in keys:
        publish(folder, file_of(key=key), key)
    return {"url": None, "shared_storage_path": str(folder)}


@pytest.mark.parametrize(("place", "operation"), STUCK)
async def test_an_operation_that_stands_in_the_kernel_holds_no_other_key(
    place: str, operation: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = "cd" * 32
    where = place_of(place, tmp_path, KEY, other)
    stuck = Stuck(operation, monkeypatch)
    async with fetching(**where, timeout_seconds=600) as fetcher:
        first = asyncio.create_task(fetcher.fetch(NEED))
        await asyncio.to_thread(stuck.begun.acquire)
        assert (await fetcher.fetch(replace(NEED, key=other))).num_bytes and not first.done()
        stuck.release.set()
        assert (await asyncio.to_thread(read_rows, (await first).path))[0, 0] == 0.5


@pytest.mark.parametrize(("place", "operation"), STUCK)
async def test_an_operation_that_stands_in_the_kernel_does_not_hold_the_limit(
    place: str, operation: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = place_of(place, tmp_path, KEY)
    stuck = Stuck(operation, monkeypatch)
    async with fetching(**where, timeout_seconds=0.01) as fetcher:
        with pytest.raises(PickupFailed, match=r"within 0.01 s: .*: not done after"):
            await fetcher.fetch(NEED)
        assert not stuck.release.is_set()
        stuck.release.set()


async def test_a_folder_that_hangs_takes_so_many_threads_and_the_limit_holds_for_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck = Stuck("open", monkeypatch)
    stuck.most = 100
    where = {"url": None, "shared_storage_path": str(tmp_path)}
    async with fetching(**where, timeout_seconds=0.01, max_connections=2) as fetcher:
        needs = [replace(NEED, key=f"{number:064x}") for number in range(9)]
        ended = await asyncio.gather(*(fetcher.fetch(need) for need in needs), return_exceptions=True)
        assert {type(each) for each in ended} == {PickupFailed} and stuck.num_stuck <= 2
        assert all(thread.daemon for thread in threading.enumerate() if thread.name.startswith("foveal-folder"))
        stuck.release.set()


async def test_a_folder_that_hangs_leaves_time_for_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stuck = Stuck("open", monkeypatch)
    moments = iter([0.0, 599.99])  # the folder's half of what is left is over at once
    clock = Clock(now=lambda: next(moments, 0.0))
    async with fetching(clock, shared_storage_path=str(tmp_path), timeout_seconds=600) as fetcher:
        assert (await fetcher.fetch(NEED)).num_bytes == len(file_of())
        stuck.release.set()


async def test_a_server_that_is_silent_leaves_time_for_the_next(time: Any) -> None:
    async def answer(request: httpx.Request) -> httpx.Response:
        if request.url.host == "one":
            await asyncio.Event().wait()
        return httpx.Response(200, content=file_of())

    moments = iter([0.0, 599.99])
    clock = Clock(now=lambda: next(moments, 0.0))
    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as http:
        fetcher = Fetcher(settings_of(url="http://one,http://two", timeout_seconds=600), http, clock)
        assert (await fetcher.fetch(NEED)).num_bytes == len(file_of())
        fetcher.close()


def test_what_is_sealed_takes_no_writing_map_and_no_other_size(tmp_path: Path) -> None:
    file = MemoryFile(100)
    file.write(b"12", b"", b"34")
    file.seal()
    descriptor = os.open(file.path, os.O_RDWR)
    with pytest.raises(PermissionError):
        mmap.mmap(descriptor, 4)
    for size in (0, 8):
        with pytest.raises(PermissionError):
            os.ftruncate(descriptor, size)
    with pytest.raises(PermissionError):
        os.write(descriptor, b"x")
    os.close(descriptor)


def test_a_kernel_that_knows_no_seal_for_the_future_seals_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    real = fcntl.fcntl

    def old_kernel(descriptor: int, command: int, seals: int) -> int:
        if seals & 0x10:
            raise OSError(errno.EINVAL, "Invalid argument")
        return real(descriptor, command, seals)

    file = MemoryFile(100)
    monkeypatch.setattr(fcntl, "fcntl", old_kernel)
    file.seal()
    with pytest.raises(PermissionError):
        file.write(b"more")


def open_memory() -> int:
    """Memory files that the process has open. The folder lists the descriptor of its own listing, gone by then."""
    gc.collect()
    names = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
    return sum("memfd:foveal" in os.readlink(name) for name in names if os.path.lexists(name))


async def test_failing_pick_ups_leave_no_descriptor_open(time: Any) -> None:
    async def fail(answer: Answer) -> None:
        # What an exception remembers goes with it.
        with pytest.raises(PickupFailed):
            await fetch(answer, time)

    before = open_memory()
    for _ in range(5):
        await fail(always(404))
        await fail(always(200, b"nothing"))
    assert open_memory() == before


def test_memory_refuses_more_than_it_may_hold() -> None:
    file = MemoryFile(4)
    file.write(b"1234")
    with pytest.raises(InvalidResponse, match="4 bytes"):
        file.write(b"5")


@pytest.mark.parametrize(
    ("extra", "why"),
    [
        ({"uri": "http://x"}, "'uri'"),
        ({"url": "foveal:8000"}, "http"),
        ({"timeout_seconds": 0}, "timeout_seconds"),
        ({"timeout_seconds": "30"}, "timeout_seconds"),
        ({"max_bytes": True}, "max_bytes"),
    ],
)
def test_settings_that_cannot_work_are_refused_with_a_sentence(extra: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        PickupSettings.of(extra)


def test_the_key_of_the_server_comes_from_the_environment_and_is_not_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOVEAL_API_KEY", "secret")
    settings = PickupSettings.of({})
    assert (settings.api_key, settings.urls) == ("secret", ("http://127.0.0.1:8000",))
    assert "secret" not in repr(settings)


class _Config:
    def __init__(self, **fields: Any) -> None:
        self.__dict__.update(fields)


def test_the_shape_of_rows_follows_from_the_checkpoint() -> None:
    deep = _Config(vision_config=_Config(spatial_merge_size=2, deepstack_visual_indexes=[5, 11, 17]))
    flat = _Config(vision_config=_Config(spatial_merge_size=2))
    assert RowShape.of(deep, 4096) == RowShape(16384, 2)
    assert RowShape.of(flat, 3584) == RowShape(3584, 2)
    assert RowShape.of(_Config(thinker_config=deep), 2048) == RowShape(8192, 2)
    with pytest.raises(ValueError, match="llava names no spatial_merge_size"):
        RowShape.of(_Config(model_type="llava", vision_config=_Config()), 4096)
