"""Shared memory: an anonymous file that the api allocates in and the children map.

The file comes from memfd_create, so it has no name: nothing is left behind when processes die, nothing has to
be swept at start, and a container's small /dev/shm does not matter (docs/decisions/0002). Pages are taken when
first touched, so a large arena costs what it has held, never more than its size.
"""

from __future__ import annotations

import bisect
import mmap
import os
import weakref
from collections import deque
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from foveal.ipc.messages import Span

ALIGNMENT = 64
"""Blocks start on cache lines, which also satisfies every vectorised load of the kernels that read them."""

Bytes = npt.NDArray[np.uint8]


class ArenaFull(Exception):
    """No free stretch is long enough now."""


class MappedArena:
    """A child's view of an arena: spans in, bytes out."""

    def __init__(self, fd: int) -> None:
        self.size = os.fstat(fd).st_size
        self.map = mmap.mmap(fd, self.size)
        self._bytes: Bytes = np.frombuffer(self.map, np.uint8)

    def whole(self) -> Bytes:
        """All bytes, writable."""
        return self._bytes

    def view(self, span: Span) -> Bytes:
        """The bytes of a span, writable; raises ValueError when the span lies outside."""
        if span.offset < 0 or span.length < 0 or span.offset + span.length > self.size:
            raise ValueError(f"span {span} lies outside an arena of {self.size} bytes: this is a bug")
        return self._bytes[span.offset : span.offset + span.length]


class FreeList:
    """First-fit allocation over [0, size), joined with free neighbours on release. Pure bookkeeping."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.used = 0
        self._starts: list[int] = [0]
        self._lengths: list[int] = [size]

    def take(self, length: int) -> int:
        """Offset of a free stretch; raises ArenaFull."""
        for i, free in enumerate(self._lengths):
            if free >= length:
                offset = self._starts[i]
                if free == length:
                    del self._starts[i], self._lengths[i]
                else:
                    self._starts[i] += length
                    self._lengths[i] -= length
                self.used += length
                return offset
        raise ArenaFull(f"no {length} bytes in one piece, {self.size - self.used} free in all")

    def give_back(self, offset: int, length: int) -> None:
        """Return what `take` gave, once."""
        i = bisect.bisect(self._starts, offset)
        before_end = self._starts[i - 1] + self._lengths[i - 1] if i else 0
        after = self._starts[i] if i < len(self._starts) else self.size
        assert before_end <= offset and offset + length <= after, "a free block was freed again: this is a bug"
        self.used -= length
        self._starts.insert(i, offset)
        self._lengths.insert(i, length)
        self._join(i)
        if i:
            self._join(i - 1)

    def _join(self, i: int) -> None:
        if i + 1 < len(self._starts) and self._starts[i] + self._lengths[i] == self._starts[i + 1]:
            self._lengths[i] += self._lengths.pop(i + 1)
            del self._starts[i + 1]


class Block:
    """Bytes of an arena that live as long as anyone holds the view: cache, response or transport.

    `view` is a NumPy array; slices and memoryviews of it keep it alive, and when the last one goes its bytes are
    free again. So there is no release to forget, to do twice, or to do while a socket still reads.
    """

    __slots__ = ("__weakref__", "span", "view")

    def __init__(self, view: Bytes, span: Span) -> None:
        self.view = view
        self.span = span


class Arena(MappedArena):
    """The api's end: owns the file and decides who writes where."""

    def __init__(self, name: str, size: int) -> None:
        self.fd = os.memfd_create(f"foveal-{name}", os.MFD_CLOEXEC)
        weakref.finalize(self, os.close, self.fd)
        os.ftruncate(self.fd, size)
        super().__init__(self.fd)
        self.name = name
        self._free = FreeList(size)
        self._returned: deque[tuple[int, int]] = deque()
        self._released: Callable[[], None] = lambda: None

    @property
    def used(self) -> int:
        """Bytes that are taken now, rounding included."""
        self._collect()
        return self._free.used

    def on_release(self, call: Callable[[], None]) -> None:
        """Have `call` run whenever bytes come back: in any thread, inside any statement that drops a view."""
        self._released = call

    def allocate(self, length: int) -> Block:
        """A block of `length` bytes; raises ArenaFull when there is no room now."""
        self._collect()
        padded = max(1, -(-length // ALIGNMENT)) * ALIGNMENT
        offset = self._free.take(padded)
        # frombuffer makes an array whose base is not another array, so that views of views refer to this very one
        view: Bytes = np.frombuffer(self.map, np.uint8, count=length, offset=offset)
        # weak: finalizers are kept until they run, and a view in a cache of the arena's owner would keep both for ever
        weakref.finalize(view, _release, weakref.ref(self), offset, padded).atexit = False
        return Block(view, Span(offset, length))

    def _release(self, offset: int, padded: int) -> None:
        # A finalizer may run in the middle of take(), when the garbage collector starts there: only note it here.
        self._returned.append((offset, padded))
        self._released()

    def _collect(self) -> None:
        while self._returned:
            self._free.give_back(*self._returned.popleft())


def _release(arena: weakref.ref[Arena], offset: int, padded: int) -> None:
    if (owner := arena()) is not None:
        owner._release(offset, padded)
