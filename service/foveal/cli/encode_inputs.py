"""Files and folders of a command line → the pictures to encode, each with a name of its own."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
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


def find_pictures(paths: Sequence[Path], recursive: bool) -> list[Picture]:
    """All pictures, in the order given and by name within a folder; one that is named twice comes once.

    Raises ValueError for a path that is not there, and when there is no picture at all.
    """
    found: dict[Path, None] = {}
    roots = []
    for path in map(_absolute, paths):
        if not path.exists():
            raise ValueError(f"{path}: no such file or folder")
        roots.append(path if path.is_dir() else path.parent)
        found |= dict.fromkeys(_in_folder(path, recursive) if path.is_dir() else [path])
    if not found:
        hint = "" if recursive else "; --recursive looks into the folders below as well"
        raise ValueError(f"no pictures in {', '.join(map(str, paths))}{hint}")
    root = os.path.commonpath(roots)
    return [Picture(path, _name(path.relative_to(root))) for path in found]


def _absolute(path: Path) -> Path:
    # Not resolve(): a link keeps the name that the caller knows it by.
    return Path(os.path.abspath(path))


def _in_folder(folder: Path, recursive: bool) -> Iterator[Path]:
    for place, below, names in os.walk(folder):
        below[:] = sorted(name for name in below if recursive and not name.startswith("."))
        for name in sorted(names):
            if not name.startswith(".") and Path(name).suffix.lower() in PICTURE_SUFFIXES:
                yield Path(place, name)


def _name(path: Path) -> str:
    """Text that any JSON reader takes, also for file names that are not UTF-8."""
    return path.as_posix().encode("utf-8", "backslashreplace").decode("utf-8")
