"""Embeddings of some size and name, and a clock that moves when told."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from foveal.engine.items import Encoded
from foveal.ipc.arena import Arena
from foveal.types import GridTHW, Output


@dataclass
class FakeClock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


def key_of(name: object) -> str:
    return hashlib.sha256(str(name).encode()).hexdigest()


def encoded(arena: Arena, name: object, size: int = 128) -> Encoded:
    """One whose rows are [size / 8, 2] float32."""
    block = arena.allocate(size)
    block.view[:] = size % 251
    shape = (size // 8, 2)
    return Encoded(
        block, shape, Output("tokens", "float32"), GridTHW(1, 2, 2), shape[0], (1, 1), "00" * 32, key_of(name)
    )
