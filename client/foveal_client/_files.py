"""A picture's file → its bytes. Only regular files are opened: a pipe or a device may hang, or never end.

Also the threads that read for asynchronous callers: a disk that hangs must hold neither a caller nor its exit.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import stat
import threading
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from foveal_client._errors import DeadlineExceeded

MAX_THREADS = 32
"""That read at one time, of one client. One that hangs keeps its place."""
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
    """Runs what may read files beside an event loop, on threads that nothing waits for when it is given up."""

    def __init__(self, max_threads: int = MAX_THREADS) -> None:
        self._seats = asyncio.Semaphore(max_threads)

    async def run(self, work: Callable[[], T], seconds: float) -> T:
        """What `work` returns or raises; DeadlineExceeded when it takes longer. It then goes on, and keeps its seat."""
        try:
            async with asyncio.timeout(seconds) as patience:
                return await self._run(work)
        except TimeoutError as error:
            if not patience.expired():  # a file system's own
                raise
            raise DeadlineExceeded("the images were not read within the timeout") from error

    async def _run(self, work: Callable[[], T]) -> T:
        loop = asyncio.get_running_loop()
        await self._seats.acquire()
        done: asyncio.Future[T] = loop.create_future()

        def settle(put: Callable[[], None]) -> None:
            self._seats.release()
            if not done.cancelled():
                put()

        def read() -> None:
            try:
                put = partial(done.set_result, work())
            except BaseException as error:  # it is the caller's, whatever it is
                put = partial(done.set_exception, error)
            with contextlib.suppress(RuntimeError):  # the loop has ended: nobody waits any more
                loop.call_soon_threadsafe(settle, put)

        try:
            threading.Thread(target=read, name="foveal-read", daemon=True).start()
        except RuntimeError:
            self._seats.release()
            raise
        return await done
