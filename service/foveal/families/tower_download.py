"""Fetches the tower's bytes alone out of a hub's large files, where most of the bytes are the language model's.

The tensors become one file, beside copies of the small files: a checkpoint folder like any other. What ended early goes
on where it ended. A hub that answers no ranges, or a client that is too old, gives whole files instead.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from foveal.families.tensor_header import LENGTH_BYTES, TensorPlace, header_length, parse_header, read_header
from foveal.families.weight_files import WHOLE

log = logging.getLogger(__name__)
CHUNK_BYTES = 16 << 20
THREADS = 8
HEAD_BYTES = 1 << 20
"""Read at once; heads of most files are shorter."""
WORTH = 0.5
"""Ranges are fetched where they are at most this part of the files: whole files are of use to other programs too."""
LARGE_BYTES = 16 << 20
"""Files that are smaller together are fetched whole."""
Read = Callable[[str, int, int], bytes | None]
"""Bytes of a file of the repository from start to stop; None where the hub sends no ranges."""


@dataclass(frozen=True)
class Span:
    """Bytes of one file."""

    file: str
    start: int
    stop: int


@dataclass(frozen=True)
class Extract:
    """What is fetched: a new file's head, and the bytes behind it, in order."""

    header: bytes
    spans: tuple[Span, ...]

    @property
    def nbytes(self) -> int:
        """Of the spans."""
        return sum(span.stop - span.start for span in self.spans)


def plan(files: dict[str, int], choose: Callable[[Collection[str]], Collection[str]], read: Read) -> Extract | None:
    """The extract of the chosen tensors of files with their sizes; None where whole files are the better way."""
    if sum(files.values()) < LARGE_BYTES:
        return None
    found: dict[str, tuple[str, int, TensorPlace]] = {}
    for file in files:
        head = _head(file, read)
        if head is None:
            return None
        places, begin = head
        found |= {name: (file, begin, place) for name, place in places.items()}
    chosen = choose(found.keys())
    if not all(name in found for name in chosen):
        return None  # the index is stale: whole files tell more
    order = sorted(chosen, key=lambda name: (found[name][0], found[name][2].start))
    extract = _extract(order, found)
    return extract if extract.nbytes <= WORTH * sum(files.values()) else None


def fetch(extract: Extract, small: Collection[Path], folder: Path, read: Read) -> None:
    """Make a folder of the extract and copies of small files; it gets its name when it is whole."""
    from huggingface_hub.utils import WeakFileLock  # type: ignore[attr-defined]

    folder.parent.mkdir(parents=True, exist_ok=True)
    with WeakFileLock(folder.with_name(f".{folder.name}.lock")):
        if folder.exists():
            return  # another server was first
        part = folder.with_name(f".{folder.name}.part")
        part.mkdir(exist_ok=True)
        _write(part / WHOLE, extract, read)
        read_header(part / WHOLE)
        for path in small:
            shutil.copyfile(path, part / path.name)
        part.rename(folder)


def _head(file: str, read: Read) -> tuple[dict[str, TensorPlace], int] | None:
    first = read(file, 0, HEAD_BYTES)
    if first is None:
        return None
    begin = LENGTH_BYTES + header_length(file, first)
    rest = read(file, len(first), begin) if begin > len(first) else b""
    return None if rest is None else (parse_header(file, (first + rest)[LENGTH_BYTES:begin]), begin)


def _extract(order: list[str], found: dict[str, tuple[str, int, TensorPlace]]) -> Extract:
    entries, spans, offset = {}, list[Span](), 0
    for name in order:
        file, begin, place = found[name]
        stop = offset + place.stop - place.start
        entries[name] = {"dtype": place.dtype, "shape": place.shape, "data_offsets": [offset, stop]}
        offset = stop
        span = Span(file, begin + place.start, begin + place.stop)
        if spans and (spans[-1].file, spans[-1].stop) == (span.file, span.start):
            span = Span(file, spans.pop().start, span.stop)
        spans.append(span)
    header = json.dumps({"__metadata__": {"format": "pt"}, **entries}).encode()
    header += b" " * (-len(header) % LENGTH_BYTES)  # data is aligned, as the library writes it
    return Extract(len(header).to_bytes(LENGTH_BYTES, "little") + header, tuple(spans))


def _write(path: Path, extract: Extract, read: Read) -> None:
    """Append what the file lacks: chunks come in order, several are under way."""
    from huggingface_hub.utils import tqdm  # type: ignore[attr-defined]

    head = len(extract.header)
    done = max(0, path.stat().st_size - head) // CHUNK_BYTES * CHUNK_BYTES if _has_head(path, extract.header) else 0
    with path.open("r+b" if done else "wb") as file, ThreadPoolExecutor(THREADS) as pool:
        if not done:
            file.write(extract.header)
        file.truncate(head + done)
        file.seek(head + done)
        chunks = islice(_chunks(extract.spans), done // CHUNK_BYTES, None)
        shown = {"total": extract.nbytes, "initial": done, "unit": "B", "unit_scale": True, "desc": "vision tower"}
        with tqdm(**shown) as bar:  # type: ignore[no-untyped-call]
            while group := list(islice(chunks, THREADS)):
                for data in pool.map(lambda spans: b"".join(_whole(span, read) for span in spans), group):
                    file.write(data)
                    bar.update(len(data))
        file.flush()
        os.fsync(file.fileno())


def _has_head(path: Path, header: bytes) -> bool:
    if not path.exists():
        return False
    with path.open("rb") as file:
        return file.read(len(header)) == header


def _chunks(spans: Collection[Span]) -> Iterator[list[Span]]:
    """Groups of spans of CHUNK_BYTES each, but for the last."""
    group, room = list[Span](), CHUNK_BYTES
    for span in spans:
        start = span.start
        while start < span.stop:
            stop = min(span.stop, start + room)
            group.append(Span(span.file, start, stop))
            room -= stop - start
            start = stop
            if not room:
                yield group
                group, room = [], CHUNK_BYTES
    if group:
        yield group


def _whole(span: Span, read: Read) -> bytes:
    data = read(span.file, span.start, span.stop)
    if data is None or len(data) != span.stop - span.start:
        got = "no range" if data is None else f"{len(data)} bytes"
        raise OSError(f"the hub sent {got} of {span.file} where {span.stop - span.start} were asked for")
    return data
