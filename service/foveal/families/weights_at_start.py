"""Where a folder's tensors lie, and what about them is refused before any worker starts."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from foveal.errors import ConfigurationError
from foveal.families.checkpoint import Checkpoint
from foveal.families.explain import CONFIG
from foveal.families.tensor_header import TensorPlace, read_header
from foveal.families.tower_plan import Names
from foveal.families.weight_files import (
    INDEX_END,
    named,
    prefix_of,
    read_index,
    tower_tensors,
    weight_file,
)

log = logging.getLogger(__name__)
ADAPTER, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_QUANTISED_ENDS = (
    ".qweight",
    ".qzeros",
    ".scales",
    ".g_idx",
    ".weight_scale",
    ".weight_scale_inv",
    ".weight_global_scale",
    ".weight_zero_point",
    ".weight_packed",
    ".weight_shape",
    ".weight_blocks",
    ".weight_scales",
    ".input_scale",
    ".absmax",
    ".quant_map",
    ".SCB",
)
"""Of tensors that GPTQ, AWQ, fp8, compressed-tensors, MXFP4 and bitsandbytes put beside or in place of a matrix."""
_FLOATS = ("F64", "F32", "F16", "BF16")


def weight_places(folder: Path, names: Names) -> dict[str, Path]:
    """The file that each tensor is in: all of a whole file's, of shards at least those of the tower's.

    Raises ConfigurationError where they cannot be had.
    """
    config = folder / CONFIG
    says: dict[str, Any] = json.loads(config.read_bytes()) if config.exists() else {}
    file = weight_file(str(folder), says, {path.name for path in folder.iterdir()})
    if not file.endswith(INDEX_END):
        return dict.fromkeys(read_header(folder / file), folder / file)
    return _sharded(folder, read_index(folder / file), names)


def _sharded(folder: Path, index: Mapping[str, str], names: Names) -> dict[str, Path]:
    """By the index, and by the shards themselves where the two differ: transformers looks into the shards alone."""
    wanted = tower_tensors(str(folder), index, names)
    shards = sorted({index[name] for name in wanted})
    missing = [shard for shard in shards if not (folder / shard).exists()]
    if missing:
        raise ConfigurationError(
            f"{folder} lacks {named(missing)}, which its index names for the vision tower: fetch what is missing (a "
            "download or a copy ended early), or take an index away that is not this model's"
        )
    places = {name: folder / shard for name, shard in index.items()}
    inside = {shard: read_header(folder / shard).keys() for shard in shards}
    if any(name not in inside[index[name]] for name in wanted):
        log.warning("the index of shards is stale: the shards themselves are searched", extra={"folder": str(folder)})
        listed = [shard for shard in sorted(set(index.values())) if (folder / shard).exists()]
        inside = {shard: read_header(folder / shard).keys() for shard in listed}
        places = {}
    return places | {name: folder / shard for shard, found in inside.items() for name in found}


def check_weights(checkpoint: Checkpoint, names: Names) -> None:
    """Refuse weights that no worker could load, as far as heads of files tell; raises ConfigurationError."""
    places = weight_places(checkpoint.folder, names)
    tower = tower_tensors(str(checkpoint.folder), places, names)
    heads: dict[str, TensorPlace] = {}
    for path in sorted({places[name] for name in tower}):
        heads |= read_header(path)
    _refuse_quantised(checkpoint, {name: heads[name] for name in tower}, names)
    _refuse_adapter(checkpoint.folder, prefix_of(places, names))


def _refuse_quantised(checkpoint: Checkpoint, tower: Mapping[str, TensorPlace], names: Names) -> None:
    kept = {name: place for name, place in tower.items() if not name.endswith(names.ignored)}
    odd = [name for name in kept if name.endswith(_QUANTISED_ENDS) or ".quant_state." in name]
    whole = [name for name, place in kept.items() if place.dtype[0] in "IUB" and place.dtype not in _FLOATS]
    if not odd and not whole:
        return
    method = _quantisation(checkpoint.config)
    base = checkpoint.config.get("_name_or_path") or "the checkpoint that it was made from"
    found = named([f"{name} ({kept[name].dtype})" for name in odd or whole])
    raise ConfigurationError(
        f"the vision tower in {checkpoint.folder} is quantised{method}, as {found} shows: weights are read in "
        f"bfloat16, float16 and float32; serve {base} (an LLM server beside may keep this one)"
    )


def _quantisation(config: Mapping[str, Any]) -> str:
    owners = [config, *(config.get(part) or {} for part in ("text_config", "thinker_config"))]
    for owner in owners:
        said = owner.get("quantization_config") or owner.get("compression_config") if isinstance(owner, dict) else None
        if isinstance(said, dict):
            return f" by {said.get('quant_method', 'a method without a name')}"
    return ""


def _refuse_adapter(folder: Path, prefix: str) -> None:
    """With peft, transformers puts an adapter on the weights beside it; one that leaves the tower alone is no harm."""
    if not (folder / ADAPTER).exists():
        return
    weights = folder / ADAPTER_WEIGHTS
    touched = [name for name in read_header(weights) if prefix in name] if weights.exists() else [ADAPTER]
    if touched:
        raise ConfigurationError(
            f"{folder} holds whole weights and an adapter for the vision tower ({named(touched)}), which transformers "
            "with peft would load together: merge them (merge_and_unload, then save_pretrained), or move the adapter_* "
            "files away to serve the weights as they are"
        )
    log.warning("an adapter that leaves the vision tower alone is not loaded", extra={"folder": str(folder)})
