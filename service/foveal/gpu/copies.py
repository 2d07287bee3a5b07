"""Asynchronous copies by address, straight from CUDA's runtime library.

`Tensor.copy_` costs the host ten times what issuing a copy costs, and a pack has one for each image and way. The
library is the one that torch has loaded.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Protocol

import torch

_DEFAULT_KIND = 4
"""cudaMemcpyDefault: the addresses tell the direction."""


class IssueCopies(Protocol):
    """Copies between any two of host (pinned) and device memory, issued on a raw stream; they return before the end."""

    def __call__(self, target: int, source: int, num_bytes: int, stream: int) -> None:
        """Adjacent bytes."""

    def columns(self, target: int, source: int, width: int, pitch: int, rows: int, stream: int) -> None:
        """The same `width` bytes of so many rows, which begin `pitch` bytes apart on both sides."""


class Copier:
    """Implements `IssueCopies`; raises RuntimeError when CUDA refuses one."""

    def __init__(self) -> None:
        torch.cuda.init()
        library = ctypes.CDLL(_loaded_runtime())
        address, size, kind = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
        self._copy, self._copy_columns = library.cudaMemcpyAsync, library.cudaMemcpy2DAsync
        self._copy.argtypes = (address, address, size, kind, address)
        self._copy_columns.argtypes = (address, size, address, size, size, size, kind, address)
        self._copy.restype = self._copy_columns.restype = ctypes.c_int

    def __call__(self, target: int, source: int, num_bytes: int, stream: int) -> None:
        """Adjacent bytes."""
        error = self._copy(target, source, num_bytes, _DEFAULT_KIND, stream)
        if error:
            raise RuntimeError(f"CUDA could not issue a copy of {num_bytes} bytes: error {error}")

    def columns(self, target: int, source: int, width: int, pitch: int, rows: int, stream: int) -> None:
        """Some bytes of each row."""
        error = self._copy_columns(target, pitch, source, pitch, width, rows, _DEFAULT_KIND, stream)
        if error:
            raise RuntimeError(f"CUDA could not issue a copy of {rows} times {width} bytes: error {error}")


def _loaded_runtime() -> str:
    """Path of the runtime library in this process."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = line.rsplit(" ", 1)[-1]
        if "/libcudart" in path:
            return path
    raise RuntimeError("torch has loaded no CUDA runtime library: is it a CUDA build?")
