"""Arenas as pinned memory: copies between them and the GPU need no staging on the host and no wait."""

from __future__ import annotations

import weakref

import torch

from foveal.errors import ConfigurationError
from foveal.ipc.arena import MappedArena


def pin(arena: MappedArena) -> torch.Tensor:
    """The whole arena, uint8 [size], registered with CUDA for as long as this process lives.

    Its pages become resident here and now: a GPU host pays the size of the arenas once, at start.
    """
    whole = torch.from_numpy(arena.whole())
    error = int(torch.cuda.cudart().cudaHostRegister(whole.data_ptr(), arena.size, 0))
    if error != 0:
        raise ConfigurationError(
            f"CUDA cannot pin {arena.size} bytes of shared memory (error {error}): lower --max-inflight-bytes and "
            "--cache-bytes, or allow more locked memory (ulimit -l)"
        )
    weakref.finalize(whole, _unpin, whole.data_ptr()).atexit = False
    return whole


def _unpin(address: int) -> None:
    """Before the memory goes: what takes its addresses next must not pass for pinned."""
    torch.cuda.cudart().cudaHostUnregister(address)
