"""A picture's file → its bytes. Only regular files are opened: a pipe or a device may hang, or never end.

Also the threads that read for asynchronous callers: a disk that hangs must hold neither a caller nor its exit.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import queue
import stat
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from foveal_client._errors import DeadlineExceeded

MAX_THREADS = 32
"""That read at one time, of one client. One that hangs keeps its place."""
IDLE_SECONDS = 5.0
"""A thread that has had nothing to read for so long ends."""
CHUNK_BYTES = 1 << 20
_KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
# Not there on every system. Without it the opening of a pipe waits for somebody who writes.
_FLAGS = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
T = TypeVar("T")


def read_file(path: str | os.PathLike[str], check: Callable[[], object] | None = None) -> bytes:
    """All bytes of a regular file. `check` is called now and then, and may raise.

    Raises OSError, with a sentence for what is no regular file or changes while it is read.
    """
    name = os.fspath(path)
    if check is not None:
        check()
    # Looked at first, since opening alone does something to some devices; and again, since a name may change hands.
    _check_kind(name, os.stat(name).st_mode)
    with open(os.open(name, _FLAGS), "rb", buffering=0) as file:
        before = os.fstat(file.fileno())
        _check_kind(name, before.st_mode)
        try:
            content = _read(file.read, before.st_size, check)
        except MemoryError:
            raise OSError(errno.ENOMEM, f"{before.st_size} bytes are more than there is memory", name) from None
        after = os.fstat(file.fileno())
    if len(content) != before.st_size or (after.st_size, after.st_mtime_ns) != (before.st_size, before.st_mtime_ns):
        raise OSError(errno.EBUSY, "the file changed while it was read", name)
    return content


def _read(read: Callable[[int], bytes | None], num_bytes: int, check: Callable[[], object] | None) -> bytes:
    """At most one byte more than the file is said to have: one that grows for ever is not followed."""
    if num_bytes <= CHUNK_BYTES:
        return _until(read, num_bytes + 1)
    content = bytearray()
    while len(content) <= num_bytes and (chunk := read(CHUNK_BYTES)):
        content += chunk
        if check is not None:
            check()
    return bytes(content)


def _until(read: Callable[[int], bytes | None], num_bytes: int) -> bytes:
    first = read(num_bytes) or b""
    while len(first) < num_bytes and (more := read(num_bytes - len(first))):
        first += more
    return first


def _check_kind(name: str, mode: int) -> None:
    """Raises OSError for anything but a regular file."""
    if stat.S_ISREG(mode):
        return
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, "this is a folder, not a picture", name)
    kind = _KINDS.get(stat.S_IFMT(mode), "something else")
    raise OSError(errno.EINVAL, f"this is {kind}; only regular files are read", name)


class ReadingThreads:
    """Runs what may read files beside an event loop, on threads that nothing waits for when it is given up.

    That is why it is no executor of the standard library: a program's end waits for those, however they hang.
    """

    def __init__(self, max_threads: int = MAX_THREADS) -> None:
        self._max_threads = max_threads
        self._lock = threading.Lock()
        self._works: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._num_threads = 0
        self._num_open = 0
        """Works that wait or run; one that hangs is open, and its thread counts."""

    async def run(self, work: Callable[[], T], seconds: float) -> T:
        """What `work` returns or raises; DeadlineExceeded when it takes longer, and it then goes on by itself."""
        try:
            async with asyncio.timeout(seconds) as patience:
                return await self._begin(work)
        except TimeoutError as error:
            if not patience.expired():  # a file system's own
                raise
            raise DeadlineExceeded("the images were not read within the timeout") from error

    def _begin(self, work: Callable[[], T]) -> asyncio.Future[T]:
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        with self._lock:
            self._num_open += 1
            self._works.put(partial(self._do, work, done))
            is_short = self._num_threads < min(self._num_open, self._max_threads)
            self._num_threads += is_short
        if is_short:
            threading.Thread(target=self._serve, name="foveal-read", daemon=True).start()
        return done

    def _serve(self) -> None:
        """Do one work after the other, and end after a while without any."""
        while True:
            try:
                do = self._works.get(timeout=IDLE_SECONDS)
            except queue.Empty:
                with self._lock:
                    if self._works.empty():
                        self._num_threads -= 1
                        return
            else:
                do()

    def _do(self, work: Callable[[], T], done: asyncio.Future[T]) -> None:
        try:
            if done.cancelled():
                return
            put = partial(done.set_result, work())
        except BaseException as error:  # it is the caller's, whatever it is
            put = partial(done.set_exception, error)
        finally:
            with self._lock:
                self._num_open -= 1
        with contextlib.suppress(RuntimeError):  # the loop has ended: nobody waits any more
            done.get_loop().call_soon_threadsafe(_settle, done, put)


def _settle(done: asyncio.Future[Any], put: Callable[[], None]) -> None:
    if not done.cancelled():
        put()
