"""Which files of a checkpoint are read for its weights: transformers' order of preference, and its index of shards.

Follows `_get_resolved_checkpoint_files` of transformers (5.17 to 5.24): a file that config.json names, else one whole
file, else an index. What it reads beyond safetensors is refused: a pickle runs code.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from foveal.errors import ConfigurationError
from foveal.families.tower_plan import Names

WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"
INDEX_END = ".index.json"
EXPLICIT = "transformers_weights"
"""Key of config.json that names another file."""
POINTER = b"version https://git-lfs.github.com/spec/"
_SHARD = re.compile(r"-\d+-of-\d+\.safetensors$")
_VARIANT = re.compile(r"model\.(?:safetensors\.index\.)?([\w-]+?)(?:-\d+-of-\d+)?\.(?:safetensors|json)$")
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_ELSEWHERE = (".h5", ".msgpack", ".onnx", ".tflite", ".mlpackage")
MAX_NAMED = 3


def weight_file(where: str, config: Mapping[str, Any], names: Collection[str]) -> str:
    """The file that is read, an index if its name says so, of the files of one folder.

    Raises ConfigurationError where transformers finds none either, or a pickle, saying what is there.
    """
    explicit = config.get(EXPLICIT)
    if explicit is not None:
        return _explicit(where, explicit, names)
    for name in (WHOLE, INDEX):
        if name in names:
            return name
    raise ConfigurationError(f"{where} has no {WHOLE} and no {INDEX}{_what_else(names)}")


def _explicit(where: str, name: Any, names: Collection[str]) -> str:
    if not isinstance(name, str) or not name.endswith((".safetensors", ".safetensors.index.json")):
        raise ConfigurationError(f"{where}/config.json: {EXPLICIT} is {name!r}, no safetensors file and no index")
    if name not in names:
        raise ConfigurationError(f"{where}/config.json: {EXPLICIT} names {name}, which does not lie beside it")
    return name


def _what_else(names: Collection[str]) -> str:
    """What the folder has instead, and what to do."""
    there = sorted(name for name in names if "/" not in name)
    ends = [
        (_shards(there), "shards without their index: fetch it from where they came from, or save the model again"),
        (_variants(there), "a variant, which is read only where it is asked for: give it the plain name"),
        (_starting(there, "adapter_model."), "an adapter (LoRA): merge it into its base model and save that"),
        (_ending(there, (".gguf",)), "GGUF, which is llama.cpp's: serve the checkpoint that it was made from"),
        (_starting(there, "consolidated."), "the maker's own format: serve the repository in transformers' format"),
        (_ending(there, (".safetensors",)), f"a name that is not looked for: rename it to {WHOLE} if it is the model"),
        (
            _ending(there, _PICKLES),
            "a pickle, which runs code when it is read: convert it (from_pretrained, then save_pretrained writes "
            "safetensors), or serve a revision that has safetensors",
        ),
        (_ending(there, _ELSEWHERE), "for another framework: save the model as safetensors"),
    ]
    told = next((f"; it has {named(found)}: {advice}" for found, advice in ends if found), None)
    return told or "; there are no weights at all: fetch them, or serve random ones with --load-format dummy"


def named(names: Collection[str]) -> str:
    """The first few of many names, and how many more."""
    first = ", ".join(sorted(names)[:MAX_NAMED])
    return first if len(names) <= MAX_NAMED else f"{first} and {len(names) - MAX_NAMED} more"


def _shards(names: Iterable[str]) -> list[str]:
    return [name for name in names if _SHARD.search(name) and not _VARIANT.match(name)]


def _variants(names: Iterable[str]) -> list[str]:
    return [name for name in names if _VARIANT.match(name) and name not in (WHOLE, INDEX)]


def _starting(names: Iterable[str], start: str) -> list[str]:
    return [name for name in names if name.startswith(start)]


def _ending(names: Iterable[str], ends: tuple[str, ...]) -> list[str]:
    return [name for name in names if name.endswith(ends)]


def read_index(path: Path) -> dict[str, str]:
    """From each tensor to the name of its shard; raises ConfigurationError for anything but a plain index."""
    refuse_pointer(path)
    try:
        places = json.loads(path.read_bytes())["weight_map"]
        # a shard lies beside its index: what points elsewhere was not written by a checkpoint's author
        if all(Path(file).name == file for file in places.values()):
            return dict(places)
    except (ValueError, TypeError, KeyError, AttributeError, OSError, RecursionError) as error:
        raise ConfigurationError(f"{path} cannot be read: {type(error).__name__} {error}") from None
    raise ConfigurationError(f"{path} names a file outside its folder")


def refuse_pointer(path: Path) -> None:
    """Raise ConfigurationError for what `git clone` without LFS leaves in a file's place; a missing file is none."""
    try:
        with path.open("rb") as file:
            is_pointer = file.read(len(POINTER)) == POINTER
    except OSError:
        return  # its reader will say so
    if is_pointer:
        raise ConfigurationError(
            f"{path} is a Git LFS pointer, not the file itself: run `git lfs pull` in its folder, or download the "
            "checkpoint again with `hf download`"
        )


def prefix_of(found: Collection[str], names: Names) -> str:
    """What the tower's tensors begin with in this file: the first prefix that any tensor has, else the last."""
    return next((p for p in names.prefixes if any(name.startswith(p) for name in found)), names.prefixes[-1])


def tower_tensors(where: str, found: Collection[str], names: Names) -> set[str]:
    """Those of a checkpoint's tensors that may be the tower's; raises ConfigurationError where none is."""
    prefix = prefix_of(found, names)
    outside = {source[1:] for joined in names.sources.values() for source in joined if source.startswith("/")}
    own = {name for name in found if name.startswith(prefix)}
    if not own:
        begin = sorted({name.partition(".")[0] for name in found})
        raise ConfigurationError(
            f"the weights in {where} hold no vision tower: none of {len(found)} tensors begins with "
            f"{' or '.join(names.prefixes)} (they begin with {named(begin) or 'nothing'}); a language model or a part "
            "of a checkpoint was saved alone: serve the whole one"
        )
    return own | {name for name in found if name in outside or name.rpartition(".")[0] in outside}
