"""`Heart`: a thread beside a child's work that tells the parent, again and again, that the process runs."""

from __future__ import annotations

import threading
from typing import Any

from foveal.ipc.channel import Channel
from foveal.ipc.messages import Heartbeat


class Heart(threading.Thread):
    """Beats until the parent is gone. It needs the interpreter: who holds that for ever silences it."""

    def __init__(self, channel: Channel[Any], seconds: float) -> None:
        super().__init__(name="heart", daemon=True)
        self._channel, self._seconds = channel, seconds

    def run(self) -> None:
        """The thread."""
        pause = threading.Event()
        while True:
            try:
                self._channel.send(Heartbeat())
            except OSError:
                return  # the parent is gone, which ends whoever receives from it too
            pause.wait(self._seconds)
