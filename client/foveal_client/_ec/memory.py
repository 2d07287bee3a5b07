"""Memory that one process fills and others on this host read: anonymous, and sealed before anybody reads it.

There is no name to collide and no file to sweep: it is gone when the last process that holds it is. A sealed one can
neither shrink nor change, so what was checked is what is read, and reading cannot fault.

Every method may wait in the kernel, for pages if for nothing else: call them in a thread.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from typing import Any

import numpy.typing as npt

from foveal_client._errors import InvalidResponse
from foveal_client._safetensors import read_container

TENSOR = "ec_cache"
_F_SEAL_FUTURE_WRITE = 0x10
"""Of Linux 5.1; Python's fcntl does not name it."""
_SIZE_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class MemoryFile:
    """A safetensors file in anonymous memory. Close it; the readers' maps stay valid."""

    def __init__(self, max_bytes: int) -> None:
        self._descriptor = -1
        self._descriptor = os.memfd_create("foveal", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        self._max_bytes = max_bytes
        self.num_bytes = 0

    @property
    def path(self) -> str:
        """Where another process of this user on this host opens it, while this one keeps it open."""
        return f"/proc/{os.getpid()}/fd/{self._descriptor}"

    def write(self, *chunks: bytes) -> None:
        """Append them, as many as the kernel takes in one call (1024). Raises InvalidResponse over the limit."""
        self._grow(sum(len(chunk) for chunk in chunks))
        left = [memoryview(chunk) for chunk in chunks if chunk]
        while left:
            written = os.writev(self._descriptor, left)
            while left and written >= len(left[0]):
                written -= len(left.pop(0))
            if written:
                left[0] = left[0][written:]

    def copy_from(self, descriptor: int) -> None:
        """Append what an open file holds from its beginning on, inside the kernel. Raises InvalidResponse, OSError."""
        size, at = os.fstat(descriptor).st_size, 0
        self._grow(size)
        while at < size:
            copied = os.sendfile(self._descriptor, descriptor, at, size - at)
            if copied == 0:
                raise OSError(errno.EIO, "the file became shorter while it was read")
            at += copied

    def seal(self) -> None:
        """From now on it never changes: nobody holds a map that can write, and nobody gets one.

        F_SEAL_WRITE would say the same, but waits until every processor has given back the pages that it handled: on
        busy ones for minutes. It is for kernels that know no other.
        """
        try:
            fcntl.fcntl(self._descriptor, fcntl.F_ADD_SEALS, _SIZE_SEALS | _F_SEAL_FUTURE_WRITE)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            fcntl.fcntl(self._descriptor, fcntl.F_ADD_SEALS, _SIZE_SEALS | fcntl.F_SEAL_WRITE)

    def read(self) -> tuple[dict[str, npt.NDArray[Any]], dict[str, str]]:
        """Tensors and metadata, as `read_container`. Raises InvalidResponse."""
        return read_container(_mapped(self._descriptor))

    def close(self) -> None:
        """Let go of it; twice does no harm."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __del__(self) -> None:
        # A fetch that is cancelled while a thread reads or fills the memory must leave the closing to the last of both.
        self.close()

    def _grow(self, count: int) -> None:
        self.num_bytes += count
        if self.num_bytes > self._max_bytes:
            raise InvalidResponse(f"the file is longer than the {self._max_bytes} bytes that such rows can take")


def read_rows(path: str) -> npt.NDArray[Any]:
    """The rows in a MemoryFile of another process, checked there before. Writable: a private map. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        tensors, _ = read_container(_mapped(descriptor))
    finally:
        os.close(descriptor)
    return tensors[TENSOR]


def _mapped(descriptor: int) -> memoryview:
    size = os.fstat(descriptor).st_size
    return memoryview(mmap.mmap(descriptor, size, access=mmap.ACCESS_COPY) if size else b"")
