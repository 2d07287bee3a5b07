"""A web server that drains at the first signal and stops at the second."""

from __future__ import annotations

import logging
import signal
from types import FrameType
from typing import Protocol

import uvicorn

log = logging.getLogger(__name__)


class Drainable(Protocol):
    """What a signal is told to."""

    def start_draining(self) -> bool:
        """Refuse new work from now on; False if that was already so."""

    def stop_now(self) -> None:
        """Do not wait for accepted work: tell its callers."""


class DrainingServer(uvicorn.Server):
    """At the first signal refuse new work and go on; stop when the work is done or the time is up.

    A second signal means now.
    """

    def __init__(self, config: uvicorn.Config, run: Drainable) -> None:
        super().__init__(config)
        self._run = run

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Called by uvicorn for SIGTERM and SIGINT."""
        if self._run.start_draining():
            log.info("draining", extra={"signal": signal.Signals(sig).name})
        else:
            log.warning("second signal: stopping now")
            self._run.stop_now()
            self.should_exit = True

    def stop(self) -> None:
        """Close the listening socket and end."""
        self.should_exit = True
