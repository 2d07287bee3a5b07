"""From what a finished forward left to the bytes that callers get: cut, scaled, rounded, checked, written."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from foveal.errors import DtypeOverflow, FovealError
from foveal.gpu.buffers import Results
from foveal.gpu.layout import Layout
from foveal.ipc.messages import PackItem
from foveal.types import DType, Output

TORCH_DTYPES: dict[DType, torch.dtype] = {
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float32": torch.float32,
}
LARGEST: dict[DType, float] = {name: torch.finfo(dtype).max for name, dtype in TORCH_DTYPES.items()}
Bytes = npt.NDArray[np.uint8]
Failures = tuple[tuple[int, str, str], ...]
"""Index of an item, the code of its error, and why."""


def write_tokens(layout: Layout, items: Sequence[PackItem], tokens: torch.Tensor, embeddings: Bytes) -> None:
    """Write the rows of the items that ask for them, on the host, rounded to nearest even in the asked dtype."""
    for place, item in zip(layout.tokens(), items, strict=True):
        if item.output.kind == "tokens":
            rounded = tokens[place].to(TORCH_DTYPES[item.output.dtype])
            _put(item, rounded.view(torch.uint8).numpy().reshape(-1), embeddings)


def settle(layout: Layout, items: Sequence[PackItem], results: Results, embeddings: Bytes) -> Failures:
    """Write the pooled rows that are asked for; the items that are not finite in the dtype that they asked for.

    An item with a token row that is not finite is not trusted pooled either.
    """
    failed = dict(_write_pooled(items, results.pooled, embeddings))
    failed |= dict(_with_bad_tokens(layout, items, results.row_absmax))
    return tuple((i, *_why(items[i].output.dtype, is_overflow)) for i, is_overflow in sorted(failed.items()))


def _why(dtype: DType, is_overflow: bool) -> tuple[str, str]:
    """Code and text: a number that the asked dtype cannot hold is the caller's to mend, one that is none is not."""
    if not is_overflow:
        return FovealError.code, f"the embedding of this image is not finite in {dtype}"
    wider = "dtype=float32" if dtype == "bfloat16" else "dtype=bfloat16 or dtype=float32"
    return DtypeOverflow.code, f"the embedding of this image has values larger than {dtype} holds; ask for {wider}"


def _with_bad_tokens(
    layout: Layout, items: Sequence[PackItem], row_absmax: npt.NDArray[np.float32]
) -> Iterator[tuple[int, bool]]:
    """Items by the largest magnitudes of their rows; with each, whether these are numbers."""
    starts = [place.start for place in layout.tokens()]
    most = np.maximum.reduceat(row_absmax[: layout.num_tokens], starts)  # NaN comes through
    for i, (peak, item) in enumerate(zip(most.tolist(), items, strict=True)):
        output = item.output
        if not peak <= LARGEST["float32" if output.kind == "pooled" else output.dtype]:  # so that NaN fails too
            yield i, math.isfinite(peak)


def _write_pooled(
    items: Sequence[PackItem], pooled: npt.NDArray[np.float32], embeddings: Bytes
) -> Iterator[tuple[int, bool]]:
    """Those who ask for the same are scaled and rounded together; yields the items that are not finite, and whether
    they were before they were rounded.
    """
    alike: dict[Output, list[int]] = {}
    for i, item in enumerate(items):
        if item.output.kind == "pooled":
            alike.setdefault(item.output, []).append(i)
    for output, members in alike.items():
        rows = torch.from_numpy(pooled[members])
        scaled = F.normalize(rows) if output.normalize else rows
        rounded = scaled.to(TORCH_DTYPES[output.dtype])
        for i, row in zip(members, rounded.view(torch.uint8).numpy(), strict=True):
            _put(items[i], row, embeddings)
        for place, good in enumerate(rounded.isfinite().all(1).tolist()):
            if not good:
                yield members[place], bool(scaled[place].isfinite().all())


def _put(item: PackItem, row: Bytes, embeddings: Bytes) -> None:
    start = item.embedding.offset
    embeddings[start : start + item.embedding.length] = row
