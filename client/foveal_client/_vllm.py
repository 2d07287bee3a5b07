"""Embeddings → vLLM's chat parts and its offline input. Knows the format; sends nothing, validates with _handover.

A part is `{"type": "image_embeds", "image_embeds": {...}, "uuid": key}`: one picture each, its grid as (3,), its rows
as a base64 torch archive. vLLM must run with --enable-mm-embeds, which an encoder-cache consumer sets by itself.
"""

from __future__ import annotations

import base64
import importlib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from foveal_client._handover import InvalidEmbedding, validate_key
from foveal_client._torch_archive import torch_archive

if TYPE_CHECKING:
    from foveal_client._types import Embedding


def image_embeds_part(values: npt.NDArray[Any], grid_thw: Sequence[int], key: str) -> dict[str, Any]:
    """One picture with its rows [tokens, width]. Raises InvalidEmbedding for a key that is none; checks no values."""
    archive = base64_archive(values)
    return _part({"image_embeds": archive, "image_grid_thw": list(grid_thw)}, key)


def grid_part(grid_thw: Sequence[int], key: str) -> dict[str, Any]:
    """One picture without its rows, which an encoder-cache connector fetches by `key`. Raises InvalidEmbedding."""
    return _part({"image_grid_thw": list(grid_thw)}, key)


def vllm_inputs(embeddings: Sequence[Embedding]) -> dict[str, Any]:
    """What `LLM.generate` takes beside a prompt: all pictures' rows as one tensor, and their keys in the same order.

    `llm.generate({"prompt": prompt, **vllm_inputs(embeddings)})`, with one placeholder per picture in the prompt and
    `LLM(..., enable_mm_embeds=True)`. Copies the rows once. Raises InvalidEmbedding as `to_vllm_part` does, also when
    the embeddings differ in width; TypeError for what has no rows, as what `hold` gives; ImportError without torch.
    """
    embeddings = _with_rows(embeddings)
    if not embeddings:
        raise InvalidEmbedding("there is no embedding to hand over")
    for embedding in embeddings:
        embedding.check_for_llm()
    kinds = {(embedding.values.shape[1], embedding.dtype) for embedding in embeddings}
    if len(kinds) > 1:
        raise InvalidEmbedding(f"the embeddings differ in width or dtype: {sorted(kinds)}")
    rows = [embedding.torch() for embedding in embeddings]
    torch = importlib.import_module("torch")
    grids = torch.tensor([list(embedding.grid_thw) for embedding in embeddings], dtype=torch.int64)
    return {
        "multi_modal_data": {"image": {"image_embeds": torch.cat(rows), "image_grid_thw": grids}},
        "multi_modal_uuids": {"image": [validate_key(embedding.key) for embedding in embeddings]},
    }


def _with_rows(embeddings: object) -> list[Embedding]:
    from foveal_client._types import Embedding  # which imports this module

    if not isinstance(embeddings, Iterable):
        raise TypeError(f"vllm_inputs takes a list of embeddings, not a {type(embeddings).__name__}")
    found = list(embeddings)
    for i, one in enumerate(found):
        if not isinstance(one, Embedding):
            raise TypeError(
                f"vllm_inputs needs the rows, and embeddings[{i}] is a {type(one).__name__}: take what Client.encode "
                "gives; what Client.hold gives goes into messages, by its to_vllm_part"
            )
    return found


def base64_archive(values: npt.NDArray[Any]) -> str:
    """Base64 of the torch archive of `values`, encoded buffer by buffer: only the text itself is as large as they."""
    rows = np.ascontiguousarray(values)
    # NumPy lends no buffer of bfloat16, of bytes it does.
    archive = torch_archive(rows.reshape(-1).view(np.uint8).data, rows.dtype.name, rows.shape)
    whole = archive.values.nbytes // 3 * 3
    parts = (archive.head, archive.values[:whole], bytes(archive.values[whole:]) + archive.tail)
    return "".join(base64.b64encode(part).decode("ascii") for part in parts)


def _part(contents: dict[str, Any], key: str) -> dict[str, Any]:
    # vLLM fails as a whole on fields that it does not know: nothing else may stand beside these.
    contents["image_grid_thw"] = [int(side) for side in contents["image_grid_thw"]]
    return {"type": "image_embeds", "image_embeds": contents, "uuid": validate_key(key)}
