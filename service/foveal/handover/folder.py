"""Files of shared storage: written whole or not at all, found again, removed. All of it blocks: call it in a thread.

The layout is that of vLLM's ECExampleConnector: `FOLDER/NAME/encoder_cache.safetensors`. That the file exists is the
only sign that it may be read, so it appears by a rename.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from foveal.errors import ConfigurationError
from foveal.handover.ec_file import Buffer

FILE = "encoder_cache.safetensors"
NAME = re.compile(r"[0-9a-f]{64}")
"""Of an entry. Nothing else in the folder is ever touched."""
_PART = ".foveal-"
_MAX_HEADER_BYTES = 1 << 20
_IOV_BYTES = 1 << 30
"""The kernel takes 2 GiB in one call at most."""


@dataclass
class Published:
    """A file that is there."""

    key: str
    """Content key of what it holds; its name may be another."""
    num_bytes: int
    at: float
    """When it was last published, in seconds since 1970."""


def check_folder(folder: Path) -> None:
    """Raise ConfigurationError unless files can be written here."""
    try:
        if not folder.is_dir():
            raise ConfigurationError(f"--ec-shared-storage {folder}: there is no such folder; make it first")
        probe = folder / f"{_PART}{secrets.token_hex(8)}"
        probe.touch(exist_ok=False)
        probe.unlink()
    except OSError as error:
        raise ConfigurationError(f"--ec-shared-storage {folder} cannot be written: {error.strerror}") from None


def write(folder: Path, name: str, buffers: Sequence[Buffer], now: float) -> None:
    """Publish one file. Raises OSError and leaves nothing of it then."""
    place = folder / name
    part = place / f"{_PART}{secrets.token_hex(8)}"
    descriptor = _create(part)
    try:
        try:
            _write_all(descriptor, buffers)
            os.utime(descriptor, (now, now))  # by our clock: the storage may be another machine's
            os.fsync(descriptor)  # a file that is half there after a power failure would end the server that reads it
        finally:
            os.close(descriptor)
        part.rename(place / FILE)
    except BaseException:
        part.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # another's file may be in it
            place.rmdir()
        raise


def _create(part: Path) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    part.parent.mkdir(exist_ok=True)
    try:
        return os.open(part, flags, 0o644)
    except FileNotFoundError:  # another server has just cleaned the empty folder away
        part.parent.mkdir(exist_ok=True)
        return os.open(part, flags, 0o644)


def _write_all(descriptor: int, buffers: Sequence[Buffer]) -> None:
    left = [memoryview(buffer).cast("B") for buffer in buffers]
    while left:
        pieces = [left[0][:_IOV_BYTES]] if len(left[0]) > _IOV_BYTES else [each[:_IOV_BYTES] for each in left]
        written = os.writev(descriptor, pieces)
        while left and written >= len(left[0]):
            written -= len(left.pop(0))
        if left:
            left[0] = left[0][written:]


def touch(folder: Path, name: str, now: float) -> bool:
    """Renew a file's time; False when it is not there any more."""
    try:
        os.utime(folder / name / FILE, (now, now))
    except FileNotFoundError:
        return False
    return True


def remove(folder: Path, name: str, at: float) -> float | None:
    """Remove a file that was last published `at` this time; else give its newer time, which another server has set."""
    path = folder / name / FILE
    try:
        newer = path.stat().st_mtime
        if newer > at + 1.0:  # file systems round times
            return newer
        path.unlink()
        path.parent.rmdir()
    except FileNotFoundError:
        return None
    except OSError:
        if path.exists():
            raise  # what cannot be removed still counts
    return None


def scan(folder: Path, before: float) -> dict[str, Published]:
    """The files of an earlier run by name, oldest first. Removes what a run left half written before that time."""
    found: dict[str, Published] = {}
    for entry in os.scandir(folder):
        if NAME.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False):
            _remove_parts(Path(entry.path), before)
            if (file := _read(Path(entry.path) / FILE)) is not None:
                found[entry.name] = file
    return dict(sorted(found.items(), key=lambda item: item[1].at))


def _remove_parts(place: Path, before: float) -> None:
    for part in place.glob(f"{_PART}*"):
        with contextlib.suppress(FileNotFoundError):  # another server that shares the folder was first
            if part.stat().st_mtime < before:
                part.unlink()


def _read(path: Path) -> Published | None:
    """A file if it is one of foveal's: vLLM's own producers write the same layout, and theirs are theirs."""
    try:
        with path.open("rb") as file:
            stat = os.fstat(file.fileno())
            header = json.loads(file.read(min(int.from_bytes(file.read(8), "little"), _MAX_HEADER_BYTES)))
        key = header["__metadata__"]["content_key"]
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None
    return Published(key, stat.st_size, stat.st_mtime) if isinstance(key, str) and NAME.fullmatch(key) else None
