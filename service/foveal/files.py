"""Files that take their name when they are complete, so that what stood there before is never replaced by less."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import IO


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A file that is put at `path` when the block ends without an error; else nothing changes.

    Folders above are made, a link keeps leading where it led, and the umask decides the permissions. What is no
    regular file (a pipe, /dev/stdout) is written as it is. Raises OSError, which names `path` and nothing temporary.
    """
    with named(path):
        if path.exists() and not path.is_file():
            with path.open("wb") as straight:
                yield straight
            return
        target = Path(os.path.realpath(path))
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_name(f".foveal-{secrets.token_hex(6)}.part")
        try:
            with part.open("xb") as file:
                yield file
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Put a whole text at `path`. Raises OSError, which names it."""
    with replacing(path) as file:
        file.write(text.encode())


@contextlib.contextmanager
def named(path: Path) -> Iterator[None]:
    """Have errors about files beside `path`, or about none, name `path`."""
    try:
        yield
    except OSError as error:
        about = error.filename
        if error.errno is None or not (about is None or Path(os.fsdecode(about)).name.startswith(".foveal-")):
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error
