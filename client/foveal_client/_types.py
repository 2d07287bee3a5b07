"""What the SDK hands out: embeddings, and what a server says of itself."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypedDict

import numpy as np
import numpy.typing as npt

from foveal_client import _vllm
from foveal_client._handover import merge_size_of, validate_embedding

OutputKind = Literal["tokens", "pooled"]
DType = Literal["bfloat16", "float16", "float32"]
Oversize = Literal["reject", "downscale"]


class EncodeOptions(TypedDict, total=False):
    """Keyword options of `encode`; one that is left out, or None, is the server's default."""

    model: str | None
    """Name of the served model; the server refuses another's name."""
    output: OutputKind | None
    """One row per token, for an LLM, or one pooled row per image."""
    dtype: DType | None
    """Of the values; the model's own by default."""
    normalize: bool | None
    """Scale to length 1. With pooled output only."""
    min_pixels: int | None
    """Smaller pictures are enlarged to this area in pixels."""
    max_pixels: int | None
    """Larger pictures are shrunk to this area in pixels."""
    background: str | None
    """Under transparent parts: `white`, `black` or `#rrggbb`."""
    oversize: Oversize | None
    """Refuse images of too many tokens, or scale them down."""
    priority: int | None
    """Larger goes first."""


class EncodeKeywords(EncodeOptions, total=False):
    """All keywords of `encode`: the options, and how this one call is made."""

    timeout: float | None
    """Total seconds for this call, retries included, in place of the client's."""
    max_retries: int | None
    """In place of the client's."""
    request_id: str | None
    """Passed on as X-Request-ID, for the server's logs; made by the server when left out."""


class GridTHW(NamedTuple):
    """Temporal groups, height and width of an image, in patches (before merging)."""

    t: int
    h: int
    w: int

    @property
    def num_patches(self) -> int:
        """Input rows of the image."""
        return self.t * self.h * self.w


class Level(NamedTuple):
    """One part of an output row: columns start..stop. Deepstack models have several."""

    name: str
    start: int
    stop: int


class Usage(NamedTuple):
    """What a whole request cost; the same for each of its embeddings."""

    images: int
    patches: int
    tokens: int


@dataclass(frozen=True, eq=False)
class Embedding:
    """One image's embedding, with all that an LLM server must know to use it. Compared by identity."""

    values: npt.NDArray[Any] = field(repr=False)
    """[tokens, width], or [width] when pooled; bfloat16 through ml_dtypes. A view on the answer's body, without a
    copy, unless the server did not align it. Writable; embeddings of one request share the body, never a byte of it."""
    grid_thw: GridTHW
    tokens: int
    """What the image costs an LLM: rows of `values` unless pooled."""
    model: str
    dtype: DType
    sha256: str
    """Hex, of the image's bytes as sent."""
    key: str
    """64 hex digits that name this very embedding: the bytes, the weights, and all options that decide the values."""
    levels: tuple[Level, ...]
    """Parts of a row, left to right; empty when the row is one piece."""
    request_id: str | None
    timings: Mapping[str, float]
    """The request's stages in milliseconds, from Server-Timing; empty when the server sent none."""
    usage: Usage

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of `values`."""
        return self.values.shape

    def numpy(self, dtype: npt.DTypeLike | None = None) -> npt.NDArray[Any]:
        """`values`, converted when `dtype` is another; converting copies."""
        return self.values if dtype is None else self.values.astype(dtype, copy=False)

    def torch(self) -> Any:
        """`values` as a CPU torch.Tensor on the same memory. Raises ImportError when torch is not installed."""
        try:
            torch = importlib.import_module("torch")
        except ImportError as error:
            raise ImportError("Embedding.torch() needs PyTorch: install torch, or use .numpy()") from error
        # torch has no read-only tensors; memory that must not be written is copied rather than lent.
        values = self.values if self.values.flags.writeable else self.values.copy()
        if self.dtype != "bfloat16":
            return torch.from_numpy(values)
        # NumPy's bfloat16 is a foreign type to torch, so the bits travel as int16.
        return torch.from_numpy(values.view(np.int16)).view(torch.bfloat16)

    def to_vllm_part(self, *, by_key: bool = False) -> dict[str, Any]:
        """vLLM's chat part for this picture: `{"type": "image_embeds", ..., "uuid": key}`, ready for a message.

        `by_key` leaves the values out: for a vLLM whose encoder-cache connector fetches them. Raises InvalidEmbedding
        for what could end or mislead the LLM server: pooled output, values that are not finite, rows off the grid.
        """
        self.check_for_llm()
        return (
            _vllm.grid_part(self.grid_thw, self.key)
            if by_key
            else _vllm.image_embeds_part(self.values, self.grid_thw, self.key)
        )

    def check_for_llm(self) -> None:
        """Raises InvalidEmbedding unless rows, grid, levels and values agree as an LLM server needs it."""
        merge_size = merge_size_of(self.tokens, self.grid_thw)
        validate_embedding(self.values, self.grid_thw, merge_size=merge_size, num_levels=len(self.levels) or 1)

    def level(self, which: str | int) -> npt.NDArray[Any]:
        """The columns of one level, as a view. Raises KeyError for an unknown name, IndexError for a bad index."""
        if isinstance(which, int):
            found = self.levels[which]
        else:
            by_name = {level.name: level for level in self.levels}
            if which not in by_name:
                raise KeyError(f"no level {which!r}; this model has: {', '.join(by_name) or 'none'}")
            found = by_name[which]
        return self.values[..., found.start : found.stop]


@dataclass(frozen=True)
class Held:
    """One image whose rows the server keeps, for an LLM server to fetch by key; all but the rows that it needs."""

    key: str
    """64 hex digits: `GET /embeddings/KEY`, and the `uuid` of vLLM's parts."""
    grid_thw: GridTHW
    tokens: int
    """What the image costs an LLM: rows of what is held."""
    shape: tuple[int, ...]
    """[tokens, width] of what is held."""
    dtype: DType
    model: str
    sha256: str
    """Hex, of the image's bytes as sent."""
    request_id: str | None
    usage: Usage

    def to_vllm_part(self) -> dict[str, Any]:
        """vLLM's chat part for this picture by its key, for a vLLM that fetches. Raises InvalidEmbedding."""
        merge_size_of(self.tokens, self.grid_thw)
        return _vllm.grid_part(self.grid_thw, self.key)


@dataclass(frozen=True)
class ServerInfo:
    """What `GET /info` said. The fields that programs branch on are here; `raw` has everything."""

    model: str
    family: str | None
    revision: str | None
    levels: tuple[Level, ...]
    limits: Mapping[str, object]
    """Setting name → value, as the server enforces it."""
    raw: Mapping[str, object] = field(repr=False)
    """The whole answer: widths, token budgets with their cost, workers, versions, cache."""
