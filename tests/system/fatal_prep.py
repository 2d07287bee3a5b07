"""A prep program that decodes nothing and ends by whatever signal a picture names: `SIGSEGV`, or `SIGKILL PATH`,
which ends the process that finds no file at PATH and makes it. With `HANG` it waits. Any other picture is 8 x 8.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from typing import cast

from foveal.ipc.channel import Channel
from foveal.ipc.child import join_parent
from foveal.ipc.messages import ChildReady, Prepare, Prepared, Probed, ToPrep


def main() -> int:
    """Serve until the parent closes the socket or a picture ends it."""
    channel: Channel[ToPrep]
    channel, arenas = join_parent("fatal", cast(type[ToPrep], ToPrep), ["images", "rows"])
    channel.send(ChildReady())
    while (message := channel.receive()) is not None:
        words = arenas["images"].view(message.image).tobytes().decode().split()
        if isinstance(message, Prepare) and words[0] == "HANG":
            threading.Event().wait()
        if isinstance(message, Prepare) and words[0] in signal.Signals.__members__ and not _was_there(words[1:]):
            os.kill(os.getpid(), signal.Signals[words[0]])
        channel.send(Prepared(message.id, 0.0) if isinstance(message, Prepare) else Probed(message.id, "X", 8, 8, 0.0))
    return 0


def _was_there(mark: list[str]) -> bool:
    """True if a process before this one left the mark."""
    there = bool(mark) and Path(mark[0]).exists()
    for path in mark:
        Path(path).touch()
    return there


if __name__ == "__main__":
    sys.exit(main())
