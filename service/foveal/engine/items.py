"""What passes between the parts of the engine: a request's wishes, an item, an entry, an encoded image."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from foveal.engine.demand import Demand
from foveal.errors import DtypeOverflow, FovealError
from foveal.ipc.arena import Block
from foveal.types import GridTHW, Output


@dataclass(frozen=True)
class Wishes:
    """What a request asks for all of its images. What decides the answer is in `key`."""

    output: Output
    min_pixels: int | None = None
    max_pixels: int | None = None
    background: tuple[int, int, int] = (255, 255, 255)
    downscale: bool = False
    priority: int = 0
    chose_dtype: bool = False
    """The caller named the dtype, instead of taking the model's."""

    def key(self) -> tuple[object, ...]:
        """The part of a content key that these wishes are."""
        return (self.output, self.min_pixels, self.max_pixels, self.background, self.downscale)


def blame(error: FovealError, wishes: Wishes) -> FovealError:
    """The error as this caller is told it: a dtype that the model chose is not the caller's fault.

    Callers who asked for the same in different words may share one failed encode.
    """
    if not isinstance(error, DtypeOverflow) or wishes.chose_dtype:
        return error
    return FovealError(f"{error.message} ({wishes.output.dtype} is this model's own)")


@dataclass(frozen=True)
class Item:
    """One image made ready for a worker: uint8 patch rows, and a place for its embedding."""

    grid: GridTHW
    num_tokens: int
    rows: Block
    embedding: Block
    output: Output

    @property
    def num_patches(self) -> int:
        """Input rows."""
        return self.grid.num_patches


@dataclass(eq=False)
class Entry:
    """An item in the queue with its future and times. Times are of time.monotonic()."""

    item: Item
    done: asyncio.Future[None]
    arrival: float
    demand: Demand = field(default_factory=Demand)
    lost_with: int = 0
    """Workers that died with it; it runs again once."""
    max_company: int = 1 << 30
    """Items that its pack may have: halved after a pack failed, until the guilty one stands alone."""

    @property
    def num_tokens(self) -> int:
        """Output rows."""
        return self.item.num_tokens

    @property
    def num_patches(self) -> int:
        """Input rows."""
        return self.item.num_patches

    @property
    def caller(self) -> str:
        """Whose share it counts to."""
        return self.demand.caller

    @property
    def priority(self) -> int:
        """Larger first."""
        return self.demand.priority

    @property
    def deadline(self) -> float | None:
        """The first deadline of those who wait for it."""
        return self.demand.deadline

    @property
    def is_wanted(self) -> bool:
        """False once its caller has gone."""
        return not self.done.done()


class Encoded(msgspec.Struct, frozen=True, eq=False, weakref=True):
    """One image's embedding, in the arena, with what belongs to it. Immutable, shared by callers and cache."""

    embedding: Block
    shape: tuple[int, ...]
    output: Output
    grid: GridTHW
    num_tokens: int
    image_size: tuple[int, int]
    """Width and height of the upright picture as sent."""
    sha256: str
    """Of the bytes as sent."""
    key: str
    """Content key: names this embedding and no other (engine/keys.py)."""
    cached: bool = False
    seconds: Mapping[str, float] = {}
    """Of each stage that its caller waited for."""

    @property
    def num_bytes(self) -> int:
        """Bytes of the embedding."""
        return self.embedding.span.length

    def as_hit(self) -> Encoded:
        """The same embedding, as a caller sees it who did not wait for it."""
        return msgspec.structs.replace(self, cached=True, seconds={})

    def as_joined(self, waited: float) -> Encoded:
        """The same embedding, as a caller sees it who joined another's flight and waited so many seconds."""
        return msgspec.structs.replace(self, seconds={"queue": waited})
