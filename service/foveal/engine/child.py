"""One supervised child process: started, listened to, started again with back-off when it is lost."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from foveal.engine.pulse import HEARTBEAT_SECONDS, WATCH_SECONDS, Pulse
from foveal.ipc.arena import Arena
from foveal.ipc.channel import AsyncChannel
from foveal.ipc.messages import Heartbeat

log = logging.getLogger(__name__)

Sent = TypeVar("Sent")
Received = TypeVar("Received")
Received_contra = TypeVar("Received_contra", contravariant=True)

FIRST_BACKOFF_SECONDS = 0.1
MAX_BACKOFF_SECONDS = 10.0
STABLE_SECONDS = 30.0
"""A child that lived this long starts again without delay."""
GRACE_SECONDS = 2.0
"""Time to end by itself after it closed its socket."""
STOP_SECONDS = 0.5
"""The same after we closed it: nobody waits any more for what it may still compute."""
DUMP_SIGNAL = signal.SIGUSR1
"""On it a child writes what its threads do to the log; one that has not come so far ends of it."""
DUMP_SECONDS = 1.0
"""Time for that."""


class Listener(Protocol[Received_contra]):
    """What happens to a child, told to whoever gives it work. All calls come on the loop."""

    def started(self) -> None:
        """The process runs; messages may be sent."""

    def received(self, message: Received_contra) -> None:
        """It said something."""

    def lost(self, exit_code: int) -> None:
        """It is gone, with everything that it had in hand."""


@dataclass(frozen=True)
class Program:
    """How a child is started: `python -m module`, the arenas it maps, variables and limits of its own."""

    module: str
    arenas: Mapping[str, Arena]
    environment: Mapping[str, str]
    log_level: str = "info"
    log_format: str = "json"
    memory_bytes: int | None = None
    """What it may take beside what it has when it is ready; None leaves that to the program."""

    def arguments(self, sock: socket.socket) -> list[str]:
        """The command line."""
        line = [sys.executable, "-m", self.module, "--socket", str(sock.fileno())]
        line += ["--log-level", self.log_level, "--log-format", self.log_format]
        line += ["--heartbeat-seconds", str(HEARTBEAT_SECONDS)]
        if self.memory_bytes is not None:
            line += ["--memory-bytes", str(self.memory_bytes)]
        for name, arena in self.arenas.items():
            line += [f"--{name}", str(arena.fd)]
        return line

    def descriptors(self, sock: socket.socket) -> Sequence[int]:
        """What the child inherits."""
        return [sock.fileno(), *(arena.fd for arena in self.arenas.values())]


class Child(Generic[Sent, Received]):
    """Keeps one process running until `stop`."""

    def __init__(self, name: str, program: Program, receives: type[Received], listener: Listener[Received]) -> None:
        self.name = name
        self.pid: int | None = None
        self.restarts = 0
        self.pulse = Pulse()
        self._program, self._receives, self._listener = program, receives, listener
        self._channel: AsyncChannel[Sent, Received] | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._is_stopping = self._was_killed = False

    def send(self, message: Sent) -> None:
        """Send to the running process; what is sent to a lost one is lost with it, and `lost` tells."""
        if self._channel is not None:
            self._channel.send(message)

    def kill(self) -> None:
        """End the process at once, without asking it; it is started again, without delay: it did not fail to start."""
        if self._process is not None:
            self._was_killed = True
            _kill(self._process)

    def end_hanging(self) -> None:
        """Have it write down where it hangs, then kill it; a stopped one writes nothing, and is killed at once."""
        process = self._process
        if process is None:
            return
        if self.pulse.stopped_seconds > 0:
            _kill(process)
            return
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(DUMP_SIGNAL)
        asyncio.get_running_loop().call_later(DUMP_SECONDS, _kill, process)

    async def run(self) -> None:
        """Start, listen, start again. Returns after `stop`."""
        backoff = FIRST_BACKOFF_SECONDS
        while not self._is_stopping:
            began = time.monotonic()
            exit_code = await self._live()
            if self._is_stopping:
                return
            self.restarts += 1
            lived = time.monotonic() - began
            backoff = FIRST_BACKOFF_SECONDS if lived > STABLE_SECONDS or self._was_killed else backoff
            self._was_killed = False
            log.warning(
                "child process lost",
                extra={"child": self.name, "exit_code": exit_code, "lived_seconds": round(lived, 1)},
            )
            self._listener.lost(exit_code)
            await asyncio.sleep(backoff)
            backoff = min(backoff * 2, MAX_BACKOFF_SECONDS)

    async def stop(self) -> None:
        """Close the socket, wait a little, then kill."""
        self._is_stopping = True
        if self._channel is not None:
            self._channel.close()
        if self._process is not None:
            try:
                await asyncio.wait_for(self._process.wait(), STOP_SECONDS)
            except TimeoutError:
                self.kill()
                await self._process.wait()

    async def _live(self) -> int:
        ours, theirs = socket.socketpair()
        with theirs:
            process = await asyncio.create_subprocess_exec(
                *self._program.arguments(theirs),
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=self._program.descriptors(theirs),
                env=dict(self._program.environment),
                start_new_session=True,
            )
        self._process, self.pid = process, process.pid
        self.pulse.began(process.pid)
        self._channel = AsyncChannel(self._receives, self._listener.started, self._received)
        try:
            await self._channel.run(ours)
        except Exception:  # costs this child, which starts anew, and not the server
            log.exception("what a child said could not be handled: this is a bug", extra={"child": self.name})
        finally:
            self._channel = self.pid = None
            self.pulse.ended()
        try:
            return await asyncio.wait_for(process.wait(), GRACE_SECONDS)
        except TimeoutError:
            self.kill()  # it closed its socket, so it can do no more work
            return await process.wait()

    def _received(self, message: Received) -> None:
        self.pulse.heard()
        if not isinstance(message, Heartbeat):
            self._listener.received(message)


def in_words(exit_code: int) -> str:
    """An exit code in words."""
    names = {-number.value: number.name for number in signal.Signals}
    return f"ended by {names[exit_code]}" if exit_code in names else f"exit code {exit_code}"


def _kill(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.kill()


async def run_all(children: Sequence[Child[Any, Any]], end_late: Callable[[], None]) -> None:
    """Keep children running until all are stopped; call `end_late` twice a second to end those that hang."""
    async with asyncio.TaskGroup() as group:
        watch = group.create_task(_watch(children, end_late))
        await asyncio.wait([group.create_task(child.run()) for child in children])
        watch.cancel()


async def _watch(children: Sequence[Child[Any, Any]], end_late: Callable[[], None]) -> None:
    while True:
        await asyncio.sleep(WATCH_SECONDS)
        for child in children:
            child.pulse.look()
        end_late()
