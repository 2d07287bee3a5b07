"""A name for what lies in a local checkpoint folder, without reading gigabytes.

It keeps embeddings of two checkpoints apart that have the same config and the same sizes: a fine-tune, or an image
whose build gave every file the same time. So it looks into the weights: into the middle of each of the tower's tensors.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import BinaryIO

SAMPLE_BYTES = 1024
MAX_HEADER_BYTES = 100 << 20
"""As much as the safetensors library reads."""
_TOWER = "vis"
"""In the names of a tower's tensors (visual., vision_model., vision_tower.), where a language model lies beside."""


def fingerprint(folder: Path) -> str:
    """A digest of the folder's JSON files, and of names, sizes, times and samples of its weights."""
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*")):
        if path.suffix == ".json":
            _add(digest, path.name.encode(), path.read_bytes())
        elif path.suffix == ".safetensors":
            stat = path.stat()
            _add(digest, path.name.encode(), f"{stat.st_size} {stat.st_mtime_ns}".encode())
            with path.open("rb") as file:
                for sample in _samples(file):
                    _add(digest, sample)
    return "local-" + digest.hexdigest()[:16]


def _add(digest: hashlib._Hash, *parts: bytes) -> None:
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)


def _samples(file: BinaryIO) -> list[bytes]:
    """The header and some bytes of each of the tower's tensors. A damaged file's are few: its reader will complain."""
    size = int.from_bytes(file.read(8), "little")
    if size > MAX_HEADER_BYTES:
        return []
    header = file.read(size)
    samples = [header]
    for start, stop in _places(header):
        middle = start + (stop - start) // 2
        file.seek(8 + size + max(start, middle - SAMPLE_BYTES // 2))
        samples.append(file.read(min(SAMPLE_BYTES, stop - start)))
    return samples


def _places(header: bytes) -> list[tuple[int, int]]:
    """Where the tower's tensors start and stop, behind the header; all tensors, where no name speaks of vision."""
    try:
        offsets = {
            name: (int(entry["data_offsets"][0]), int(entry["data_offsets"][1]))
            for name, entry in json.loads(header).items()
            if name != "__metadata__"
        }
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return []
    found = {name: place for name, place in offsets.items() if _TOWER in name} or offsets
    return [(start, stop) for _, (start, stop) in sorted(found.items()) if 0 <= start < stop]
