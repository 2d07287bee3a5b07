"""`--output-file`: one .safetensors, which grows under the name NAME.partial and takes its own when it is complete.

Room for the whole header stands before the tensors, and the header is renewed on the way. So a command that is stopped
leaves a file that can be read, the next run appends to it, and a finished one is renamed and never copied.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Callable, Mapping, Sequence
from io import FileIO
from itertools import count
from pathlib import Path
from typing import IO, Any

from foveal.cli.encode_header import MAX_HEADER_BYTES, About, Tensor, bytes_of, read_header, room_for, write_header
from foveal.files import named, replacing
from foveal_client import Embedding

_COPY_BYTES = 16 * 1024 * 1024
_RESERVED = "__metadata__"


class OneFile:
    """A tensor for each picture, by its name; what describes them, and the options, in `__metadata__`."""

    def __init__(
        self, path: Path, names: Sequence[str], options: Mapping[str, Any], tell: Callable[[str], object]
    ) -> None:
        """Go on from what an earlier run left, where its options were the same. Raises OSError or ValueError.

        `tell` takes a sentence where it cannot be gone on from.
        """
        self._path, self._names, self._options = Path(os.path.realpath(path)), list(names), dict(options)
        self._metadata = {"options": json.dumps(self._options)}
        if room_for(self._names, About(), self._metadata) > MAX_HEADER_BYTES:
            raise ValueError(f"one file cannot describe {len(self._names)} pictures; --output-dir can")
        self.partial = self._path.with_name(self._path.name + ".partial")
        self._tell = tell
        self._room = self._end = self._next_header = 0
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._open()

    @property
    def kept(self) -> Mapping[str, str]:
        """By name, the hashes of pictures whose embeddings are there already."""
        found: dict[str, str] = self._about.only(self._tensors).facts["sha256"]
        return found

    def tokens_of(self, name: str) -> int:
        """Rows of one that is there."""
        return int(self._about.facts["tokens"][name])

    def add(self, name: str, embedding: Embedding) -> None:
        """Append one tensor. Raises OSError, or ValueError for one that does not belong to the others."""
        if name == _RESERVED:
            raise ValueError(f"a picture of this name cannot be in a .safetensors; rename {name}")
        self._about.check(embedding)
        if not self._room:
            self._about.add(name, embedding)
            self._room = room_for(self._names, self._about, self._metadata)
            self._renew_header()
        tensor = Tensor.of(embedding.values, self._end)
        self._write(self._room + tensor.start, bytes_of(embedding.values))
        # Not before: when writing fails, what an earlier run had for this name is still described.
        self._about.add(name, embedding)
        self._tensors[name], self._end = tensor, tensor.stop
        if len(self._tensors) >= self._next_header:
            self._renew_header()

    def differs(self, name: str, embedding: Embedding) -> str | None:
        """Why this embedding of a kept picture is not what is kept; None when it is the same one."""
        facts = self._about.facts
        if embedding.model != facts["model"]:
            return f"it was encoded by {facts['model']}, and the server now has {embedding.model}"
        if embedding.key != facts["keys"][name] or embedding.dtype != facts["dtype"]:
            return f"the server now encodes with another revision or other settings of {embedding.model}"
        return None

    def start_new(self, why: str) -> None:
        """Set what there is aside, under a further name, and begin with nothing."""
        aside = next(
            path for n in count(1) if not (path := self.partial.with_name(f"{self.partial.name}.{n}")).exists()
        )
        self.partial.rename(aside)
        self._tell(f"{self.partial} is not gone on from: {why}. It is now {aside.name}, and this run starts anew")
        self._file.close()
        self._open()

    def finish(self, num_failures: int) -> str | None:
        """Take the final name, unless that would replace pictures that this run failed to get; a sentence then."""
        names = [name for name in self._names if name in self._tensors]
        if not names:
            return self.keep()
        if num_failures and (why := _would_lose(self._path, set(names))):
            return f"{self._path} stays as it was, since {why}; {self.keep()}"
        self._renew_header()
        if set(names) == set(self._tensors) and self._is_dense():
            os.fsync(self._file.fileno())
            with named(self._path):
                self.partial.replace(self._path)
        else:
            with replacing(self._path) as file:
                self._copy_to(file, names)
                os.fsync(file.fileno())
            self.partial.unlink()
        return None

    def keep(self) -> str | None:
        """Leave what there is under its partial name; a sentence that says where, or None when there is nothing."""
        if not self._tensors:
            self.partial.unlink(missing_ok=True)
            return None
        with contextlib.suppress(OSError):  # a full disk: the header of a little before stands, and is told of
            self._renew_header()
        self._file.seek(0)
        num = len(read_header(self._file.read)[0])
        return f"{num} pictures are kept in {self.partial}; the same command goes on from there"

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()

    def _open(self) -> None:
        self._tensors: dict[str, Tensor] = {}
        self._about = About()
        self._room = self._end = self._next_header = 0
        self._file = self._open_alone()
        if os.fstat(self._file.fileno()).st_size:
            self._read_earlier()

    def _open_alone(self) -> FileIO:
        """The partial file, locked. Raises ValueError where another command writes it."""
        while True:
            descriptor = os.open(self.partial, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            # Unbuffered: what was written is in the file, and what could not be is not tried again at the end.
            file = open(descriptor, "r+b", buffering=0)  # noqa: SIM115
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(file.fileno()).st_ino == self.partial.stat().st_ino:
                    return file
            except BlockingIOError:
                file.close()
                raise ValueError(f"another command writes {self.partial} now; wait for it, or end it") from None
            except FileNotFoundError:  # finished, and so renamed, by another command just now
                pass
            file.close()

    def _read_earlier(self) -> None:
        size = os.fstat(self._file.fileno()).st_size
        try:
            tensors, metadata, room = read_header(self._file.read)
            about, options = About.of(metadata), json.loads(metadata["options"])
            if tensors.keys() != about.facts["sha256"].keys() or tensors.keys() != about.facts["keys"].keys():
                raise ValueError("its pictures and what describes them are not the same")
            if any(not 0 <= each.start <= each.stop <= size - room for each in tensors.values()):
                raise ValueError("it is cut off")
        except (ValueError, KeyError, TypeError):
            return self.start_new("it is no file that this command can go on from")
        if options != self._options:
            return self.start_new(f"it was made with other options ({_shown(options)})")
        self._tensors, self._about, self._room = tensors, about, room
        self._end = max((each.stop for each in tensors.values()), default=0)
        if tensors and (needed := room_for({**tensors, **dict.fromkeys(self._names)}, about, self._metadata)) > room:
            self._make_room(needed)
        return None

    def _make_room(self, room: int) -> None:
        """Copy everything to where a longer header has room."""
        with replacing(self.partial) as file:
            self._copy_to(file, list(self._tensors), room)
        self._file.close()
        self._open()

    def _renew_header(self) -> None:
        """Describe all tensors that are there, and cut off what is not whole."""
        header = write_header(self._tensors, self._about.only(self._tensors).metadata() | self._metadata, self._room)
        if len(header) > self._room:
            return self._make_room(2 * len(header))
        self._write(0, header)
        with named(self.partial):
            self._file.truncate(self._room + self._end)
        # Ever rarer, so that all headers together cost no more than a few of the last one.
        self._next_header = len(self._tensors) * 5 // 4 + 1
        return None

    def _write(self, at: int, content: bytes | memoryview) -> None:
        left = memoryview(content)
        with named(self.partial):
            self._file.seek(at)
            while left:
                left = left[self._file.write(left) :]

    def _is_dense(self) -> bool:
        """True when there is no tensor between the others that none describes any more."""
        return sum(each.stop - each.start for each in self._tensors.values()) == self._end

    def _copy_to(self, file: IO[bytes], names: Sequence[str], room: int = 0) -> None:
        moved, at = {}, 0
        for name in names:
            tensor = self._tensors[name]
            moved[name] = tensor._replace(start=at, stop=at + tensor.stop - tensor.start)
            at = moved[name].stop
        file.write(write_header(moved, self._about.only(names).metadata() | self._metadata, room))
        for name in names:
            tensor = self._tensors[name]
            self._file.seek(self._room + tensor.start)
            left = tensor.stop - tensor.start
            while left:
                chunk = self._file.read(min(left, _COPY_BYTES))
                file.write(chunk)
                left -= len(chunk)


def _would_lose(path: Path, names: set[str]) -> str | None:
    """Why a file at `path` is worth more than these pictures."""
    try:
        with path.open("rb") as file:
            before = read_header(file.read)[0].keys()
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        return "what it holds cannot be read"
    lost = len(before - names)
    return f"it holds {lost} pictures that this run did not encode" if lost else None


def _shown(options: Mapping[str, Any]) -> str:
    given = [f"--{name.replace('_', '-')} {value}" for name, value in options.items() if value is not None]
    return " ".join(given) or "none"
