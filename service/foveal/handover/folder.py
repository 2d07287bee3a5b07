"""Files of shared storage: written whole or not at all, found again, removed. All of it blocks: call it in a thread.

The layout is that of vLLM's ECExampleConnector: `FOLDER/NAME/encoder_cache.safetensors`. That the file exists is the
only sign that it may be read, so it appears by a rename.

A file's time of modification is the moment until which it was promised, by whichever server promised it longest: so
servers that share a folder keep each other's promises. What stands at an entry's place is opened through its own
folder, never through a link, so that nothing is written or removed outside of FOLDER.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import secrets
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from foveal.errors import ConfigurationError
from foveal.handover.ec_file import Buffer

FILE = "encoder_cache.safetensors"
NAME = re.compile(r"[0-9a-f]{64}")
"""Of an entry. Nothing else in the folder is ever touched."""
_PART = ".foveal-"
_MAX_HEADER_BYTES = 1 << 20
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_IOV_BYTES = 1 << 30
"""The kernel takes 2 GiB in one call at most."""


@dataclass(frozen=True)
class Published:
    """A file that is there."""

    key: str
    """Content key of what it holds; its name may be another."""
    num_bytes: int
    until: float
    """The moment to which it was promised, in seconds since 1970."""
    stamp: tuple[int, ...] = ()
    """What the file system said of it when it was written or renewed here; what has another stamp is another file."""


def check_folder(folder: Path) -> None:
    """Raise ConfigurationError unless files can be written here."""
    try:
        if not folder.is_dir():
            raise ConfigurationError(f"--ec-shared-storage {folder}: there is no such folder; make it first")
        probe = folder / f"{_PART}{secrets.token_hex(8)}"
        probe.touch(exist_ok=False)
        probe.unlink()
        with _alone(folder):
            pass
    except OSError as error:
        raise ConfigurationError(f"--ec-shared-storage {folder} cannot be written: {error.strerror}") from None


def write(folder: Path, name: str, key: str, buffers: Sequence[Buffer], until: float) -> Published:
    """Publish one file, promised at least `until` then. Raises OSError and leaves nothing of it then."""
    part = f"{_PART}{secrets.token_hex(8)}"
    try:
        place, descriptor = _begin(folder, name, part)
    except FileNotFoundError:  # another host's server has just cleaned the empty folder away
        place, descriptor = _begin(folder, name, part)
    try:
        _write_all(descriptor, buffers)
        os.utime(descriptor, (until, until))
        os.fsync(descriptor)  # a file that is half there after a power failure would end the server that reads it
        with _alone(folder):
            if (theirs := _promised_until(place)) > until:  # by another server, to its own readers
                os.utime(descriptor, (theirs, theirs))
            os.rename(part, FILE, src_dir_fd=place, dst_dir_fd=place)
            return _published(key, os.fstat(descriptor))
    except BaseException:
        with _alone(folder):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(part, dir_fd=place)
            _tidy(folder, name)
        raise
    finally:
        os.close(descriptor)
        os.close(place)


def renew(folder: Path, name: str, file: Published, until: float) -> Published | None:
    """Promise a file longer; None where it is not there any more as it was left here."""
    with _alone(folder), contextlib.suppress(FileNotFoundError, NotADirectoryError), _place(folder, name) as place:
        found = os.stat(FILE, dir_fd=place, follow_symlinks=False)
        if not stat.S_ISREG(found.st_mode) or _stamp(found) != file.stamp:
            return None
        until = max(until, found.st_mtime)
        os.utime(FILE, (until, until), dir_fd=place, follow_symlinks=False)
        return _published(file.key, os.stat(FILE, dir_fd=place, follow_symlinks=False))
    return None


def remove(folder: Path, name: str, file: Published) -> float | None:
    """Remove a file unless it was promised longer meanwhile: gives the moment, else None. What another program has put
    there is left alone. Raises OSError for what cannot be removed.
    """
    with _alone(folder), contextlib.suppress(FileNotFoundError, NotADirectoryError):
        with _place(folder, name) as place:
            found = os.stat(FILE, dir_fd=place, follow_symlinks=False)
            is_own = found.st_ino in file.stamp[:1] or _read(place) is not None
            if not stat.S_ISREG(found.st_mode) or not is_own:
                return None
            if found.st_mtime > file.until:
                return found.st_mtime
            os.unlink(FILE, dir_fd=place)
        _tidy(folder, name)
    return None


def scan(folder: Path, before: float) -> dict[str, Published]:
    """The files of an earlier run by name, oldest first. Removes what a run left half written before that time."""
    found: dict[str, Published] = {}
    for name in filter(NAME.fullmatch, os.listdir(folder)):
        with (
            # no folder, or not ours to read; or another server that shares it was first
            contextlib.suppress(FileNotFoundError, NotADirectoryError, PermissionError),
            _place(folder, name) as place,
        ):
            _remove_parts(place, before)
            if (file := _read(place)) is not None:
                found[name] = file
    return dict(sorted(found.items(), key=lambda item: item[1].until))


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Those who share the folder take turns, for as long as a look and a change take: a file that one has looked at
    is not renewed by another before it is removed. On a network file system only those of one host do.
    """
    descriptor = os.open(folder, _FOLDER)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _place(folder: Path, name: str) -> Iterator[int]:
    """The folder of one entry; raises OSError where something else stands there, a link to another too."""
    descriptor = os.open(folder / name, _FOLDER | os.O_NOFOLLOW)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _begin(folder: Path, name: str, part: str) -> tuple[int, int]:
    """The folder of one entry, made if need be, and an empty file in it."""
    with _alone(folder):
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder / name)
        place = os.open(folder / name, _FOLDER | os.O_NOFOLLOW)
        try:
            return place, os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644, dir_fd=place)
        except BaseException:
            os.close(place)
            raise


def _write_all(descriptor: int, buffers: Sequence[Buffer]) -> None:
    left = [memoryview(buffer).cast("B") for buffer in buffers]
    while left:
        pieces = [left[0][:_IOV_BYTES]] if len(left[0]) > _IOV_BYTES else [each[:_IOV_BYTES] for each in left]
        written = os.writev(descriptor, pieces)
        while left and written >= len(left[0]):
            written -= len(left.pop(0))
        if left:
            left[0] = left[0][written:]


def _tidy(folder: Path, name: str) -> None:
    with contextlib.suppress(OSError):  # another's file may be in it
        os.rmdir(folder / name)


def _promised_until(place: int) -> float:
    try:
        found = os.stat(FILE, dir_fd=place, follow_symlinks=False)
    except FileNotFoundError:
        return 0.0
    return found.st_mtime if stat.S_ISREG(found.st_mode) else 0.0


def _remove_parts(place: int, before: float) -> None:
    for part in os.listdir(place):
        if part.startswith(_PART):
            with contextlib.suppress(FileNotFoundError):  # another server that shares the folder was first
                if os.stat(part, dir_fd=place, follow_symlinks=False).st_mtime < before:
                    os.unlink(part, dir_fd=place)


def _read(place: int) -> Published | None:
    """A file if it is a whole one of foveal's: vLLM's own producers write the same layout, and theirs are theirs."""
    try:
        descriptor = os.open(FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=place)
        with open(descriptor, "rb") as file:
            found = os.fstat(descriptor)
            num_head = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(min(num_head, _MAX_HEADER_BYTES)))
        key = header.pop("__metadata__")["content_key"]
        num_bytes = 8 + num_head + max(tensor["data_offsets"][1] for tensor in header.values())
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None
    is_whole = stat.S_ISREG(found.st_mode) and found.st_size == num_bytes
    return _published(key, found) if is_whole and isinstance(key, str) and NAME.fullmatch(key) else None


def _published(key: str, found: os.stat_result) -> Published:
    return Published(key, found.st_size, found.st_mtime, _stamp(found))


def _stamp(found: os.stat_result) -> tuple[int, ...]:
    """Changes with every write into the file, and with every other file at its place."""
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
