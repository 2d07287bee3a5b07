"""Files and folders of a command line → the pictures to encode, each with a name of its own."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

PICTURE_SUFFIXES = frozenset(
    {".jpg", ".jpeg", ".jfif", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".avif", ".heic", ".heif", ".ppm"}
)
"""What is taken from a folder. A file that is named itself is sent whatever its suffix."""


class Picture(NamedTuple):
    """One picture to encode."""

    path: Path
    name: str
    """Its path below the nearest folder that holds all inputs, with slashes: no two pictures share one."""


class Found(NamedTuple):
    """What the paths of a command line lead to."""

    pictures: list[Picture]
    unreadable: list[tuple[Picture, Exception]]
    """Folders that could not be looked into, and why: there may have been pictures."""


def find_pictures(paths: Sequence[Path], recursive: bool) -> Found:
    """All pictures, in the order given and by name within a folder; one that is named twice comes once.

    Raises ValueError for a path that is not there, and when there is no picture at all.
    """
    found: dict[Path, None] = {}
    unreadable: list[OSError] = []
    roots = []
    for path in map(_absolute, paths):
        _check_there(path)
        roots.append(path if path.is_dir() else path.parent)
        found |= dict.fromkeys(_in_folder(path, recursive, unreadable.append) if path.is_dir() else [path])
    if not found:
        hint = "" if recursive else "; --recursive looks into the folders below as well"
        why = "".join(f"; {error.filename} cannot be looked into: {error.strerror}" for error in unreadable)
        raise ValueError(f"no pictures in {', '.join(map(str, paths))}{why or hint}")
    root = os.path.commonpath(roots)
    return Found(
        [Picture(path, _name(path.relative_to(root))) for path in found],
        [(Picture(Path(error.filename), error.filename), error) for error in unreadable],
    )


def _absolute(path: Path) -> Path:
    # Not resolve(): a link keeps the name that the caller knows it by.
    return Path(os.path.abspath(path))


def _check_there(path: Path) -> None:
    """Raises ValueError unless something is there."""
    try:
        path.stat()
    except FileNotFoundError:
        what = "a link to a file that is not there" if path.is_symlink() else "no such file or folder"
        raise ValueError(f"{path}: {what}") from None
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from None


def _in_folder(folder: Path, recursive: bool, unreadable: Callable[[OSError], object]) -> Iterator[Path]:
    for place, below, names in os.walk(folder, onerror=unreadable):
        below[:] = sorted(name for name in below if recursive and not name.startswith("."))
        for name in sorted(names):
            if not name.startswith(".") and Path(name).suffix.lower() in PICTURE_SUFFIXES:
                yield Path(place, name)


def _name(path: Path) -> str:
    """Text that any JSON reader takes, also for file names that are not UTF-8."""
    return path.as_posix().encode("utf-8", "backslashreplace").decode("utf-8")
