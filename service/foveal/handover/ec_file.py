"""One image's embedding as a file of its own: what `GET /embeddings/KEY` sends and what shared storage holds.

The tensor `ec_cache` [tokens, width] is where vLLM's ECExampleConnector looks for it; `grid_thw` and the metadata are
for others. Two buffers: a head of some hundred bytes, and the very rows that the worker wrote.
"""

from __future__ import annotations

from foveal.engine.items import Encoded
from foveal.families.spec import ModelSpec
from foveal.handover.safetensors import NAMES, Tensor, as_texts, grids_of, head_of, levels_of

TENSOR = "ec_cache"
Buffer = bytes | memoryview


def ec_file(spec: ModelSpec, encoded: Encoded, name: str | None = None) -> list[Buffer]:
    """The file, as buffers to send or write one after the other; the last is a view of the arena.

    `name` is what the reader knows it by, where that is not its content key.
    """
    grid, values = grids_of([encoded.grid])
    rows = Tensor(TENSOR, NAMES[encoded.output.dtype], encoded.shape, encoded.num_bytes)
    lists = {"tokens": encoded.num_tokens, "grid": list(encoded.grid), "levels": levels_of(spec, encoded.output)}
    metadata = {
        "model": spec.name,
        "dtype": encoded.output.dtype,
        "key": name or encoded.key,
        "content_key": encoded.key,
        "sha256": encoded.sha256,
        **as_texts(lists),
    }
    return [head_of(metadata, [grid, rows]) + values, encoded.embedding.view.data]
