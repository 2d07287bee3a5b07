"""Asynchronous copies by address, straight from CUDA's runtime library.

`Tensor.copy_` costs the host ten times what issuing a copy costs, and a pack has one for each image and way. The
library is the one that torch has loaded.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path

import torch

IssueCopy = Callable[[int, int, int, int], None]
"""Target and source address, bytes, raw stream."""

_DEFAULT_KIND = 4
"""cudaMemcpyDefault: the addresses tell the direction."""


class Copier:
    """Issues copies on raw streams; raises RuntimeError when CUDA refuses one."""

    def __init__(self) -> None:
        torch.cuda.init()
        self._copy = ctypes.CDLL(_loaded_runtime()).cudaMemcpyAsync
        self._copy.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)
        self._copy.restype = ctypes.c_int

    def __call__(self, target: int, source: int, num_bytes: int, stream: int) -> None:
        """Copy between any two of host (pinned) and device memory; returns before it is done."""
        error = self._copy(target, source, num_bytes, _DEFAULT_KIND, stream)
        if error:
            raise RuntimeError(f"CUDA could not issue a copy of {num_bytes} bytes: error {error}")


def _loaded_runtime() -> str:
    """Path of the runtime library in this process."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = line.rsplit(" ", 1)[-1]
        if "/libcudart" in path:
            return path
    raise RuntimeError("torch has loaded no CUDA runtime library: is it a CUDA build?")
