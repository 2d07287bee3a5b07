"""From the safetensors files of a Hugging Face folder to the tensors of a vision tower.

Only the tower's tensors are read, and only the files that hold some. The tower says what it wants, a family's `Names`
where the files keep it; a folder that lacks a tensor, has one of another shape, or has one that the tower does not
know is refused: half-loaded weights would give embeddings that look right.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from foveal.errors import ConfigurationError
from foveal.families.tower_plan import Names
from foveal.families.weight_files import prefix_of, tower_tensors
from foveal.families.weights_at_start import weight_places

MAX_NAMED = 3
Tensors = dict[str, torch.Tensor]


def read_weights(folder: Path, wanted: Mapping[str, torch.Size], names: Names) -> Tensors:
    """The wanted tensors by the tower's names; raises ConfigurationError when they are not all there."""
    places = weight_places(folder, names)
    tower_tensors(str(folder), places, names)
    prefix = prefix_of(places, names)
    sources = {name: [_full(source, prefix) for source in sources_of(name, names)] for name in wanted}
    needed = {source for joined in sources.values() for source in joined}
    found = _read({name: places[name] for name in places if name in needed})
    tensors = {name: _joined([found.get(s) for s in sources[name]], shape) for name, shape in wanted.items()}
    complaints = {
        "missing": [s for joined in sources.values() for s in joined if s not in found],
        "of another shape": [
            f"{', '.join(f'{s} {list(found[s].shape)}' for s in sources[name])}, not {list(wanted[name])}"
            for name, tensor in tensors.items()
            if tensor is None and all(s in found for s in sources[name])
        ],
        "unknown": [n for n in places if n.startswith(prefix) and n not in needed and not n.endswith(names.ignored)],
        "not floating point": [f"{name} {t.dtype}" for name, t in found.items() if not t.dtype.is_floating_point],
    }
    told = [f"{len(texts)} {what} ({_first(texts, prefix)})" for what, texts in complaints.items() if texts]
    if told:
        raise ConfigurationError(
            f"the weights in {folder} do not fit its config.json: of the vision tower's tensors, {'; '.join(told)}; "
            "take both from one place, and weights as transformers saves them"
        )
    return {name: tensor for name, tensor in tensors.items() if tensor is not None}


def sources_of(name: str, names: Names) -> Sequence[str]:
    """The names in the file, without prefix, of one tensor of the tower; its own name where nothing else is said."""
    number = re.search(r"\.(\d+)\.", name)
    template = name if number is None else name.replace(number[0], ".{i}.", 1)
    module, _, leaf = template.rpartition(".")
    if template in names.sources:
        found = names.sources[template]
    elif module in names.sources:
        found = tuple(f"{source}.{leaf}" for source in names.sources[module])
    else:
        found = (template,)
    return [source.replace("{i}", number[1]) if number else source for source in found]


def _full(source: str, prefix: str) -> str:
    return source[1:] if source.startswith("/") else prefix + source


def _joined(parts: Sequence[torch.Tensor | None], shape: torch.Size) -> torch.Tensor | None:
    """Parts one after the other along the first dimension; None if they do not give the shape."""
    found = (_rows(part, shape) for part in parts if part is not None)
    rows = [part for part in found if part is not None]
    if len(rows) < len(parts):
        return None
    whole = torch.cat(rows) if len(rows) > 1 else rows[0]
    return whole if whole.shape == shape else None


def _rows(part: torch.Tensor, shape: torch.Size) -> torch.Tensor | None:
    """Some rows of a tensor of this shape; files write leading ones before them, or leave out that of a single row."""
    while part.dim() > len(shape) and part.shape[0] == 1:
        part = part[0]
    if part.shape == shape[1:] and len(shape) > 1:
        part = part[None]
    return part if part.dim() == len(shape) and part.shape[1:] == shape[1:] else None


def _read(places: Mapping[str, Path]) -> Tensors:
    """Tensors by their names in the files; each file is opened once."""
    by_file: dict[Path, list[str]] = defaultdict(list)
    for name, path in places.items():
        by_file[path].append(name)
    found: Tensors = {}
    for path, names in by_file.items():
        try:
            with safe_open(path, framework="pt") as file:
                found |= {name: file.get_tensor(name) for name in names}
        except (SafetensorError, OSError) as error:
            raise ConfigurationError(f"{path} cannot be read: {error}") from None
    return found


def _first(texts: list[str], prefix: str) -> str:
    """Some of them, named without the prefix that all have."""
    return ", ".join(text.removeprefix(prefix) for text in texts[:MAX_NAMED]) + (
        ", ..." if len(texts) > MAX_NAMED else ""
    )
