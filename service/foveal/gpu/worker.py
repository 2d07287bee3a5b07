"""One worker's life on its socket: configured once, then pack after pack until the parent is gone.

The main thread takes packs and issues them; another waits for their ends and answers. Between packs, graphs are
captured, so that the worker serves from the first moment and becomes faster while it does.
"""

from __future__ import annotations

import faulthandler
import gc
import logging
import queue
import signal
import threading
import time
from dataclasses import dataclass

import msgspec
import torch

from foveal.errors import ConfigurationError
from foveal.gpu.inbox import Inbox, PackAbandoned
from foveal.gpu.ladder import GraphLadder
from foveal.gpu.least_cost import least_cost
from foveal.gpu.plain_ops import PlainOps
from foveal.gpu.runner import PackRunner, Pending, Runner, device_bytes, synchronize
from foveal.gpu.start import start
from foveal.gpu.warm_up import TYPICAL_TOKENS
from foveal.ipc.arena import MappedArena
from foveal.ipc.channel import Channel
from foveal.ipc.messages import (
    Configure,
    LadderChanged,
    PackDone,
    PackFailed,
    PackGivenUp,
    Progress,
    RunPack,
    StartFailed,
    ToWorker,
    WorkerReady,
)

log = logging.getLogger(__name__)

MEMORY_SECONDS = 1.0
DUMP_SIGNAL = signal.SIGUSR1
"""From the parent's watchdog, before it ends this process."""
OK, BROKEN_DEVICE, WRONG_SETTINGS = 0, 1, 2
_STDERR = 2


def serve(channel: Channel[ToWorker], arenas: dict[str, MappedArena]) -> int:
    """Answer until the socket ends; returns the exit code."""
    faulthandler.register(DUMP_SIGNAL, file=_STDERR)  # in C: it tells where a process hangs that runs no Python
    configure = channel.receive()
    if configure is None:
        return OK
    assert isinstance(configure, Configure), "a pack came before the configuration: this is a bug"
    try:
        runner, ladder, ready = start(configure, arenas, lambda stage: channel.send(Progress(stage)))
    except (ConfigurationError, MemoryError, torch.OutOfMemoryError) as error:
        hint = "" if isinstance(error, ConfigurationError) else "; use fewer or smaller --token-budgets"
        channel.send(StartFailed(f"{error}{hint}"))
        return WRONG_SETTINGS
    inbox = Inbox(channel)
    costs = _prepare_cpu(runner, ready, inbox)
    channel.send(ready)
    if costs is not None:
        channel.send(costs)
    gc.freeze()  # the model lives as long as the process: the collector need not walk over it between packs
    finisher = Finisher(channel, runner)
    finisher.start()
    try:
        _take_packs(channel, inbox, runner, ladder, finisher)
    finally:
        finisher.stop()
    return BROKEN_DEVICE if finisher.is_device_broken else OK


def _prepare_cpu(runner: PackRunner, ready: WorkerReady, inbox: Inbox) -> LadderChanged | None:
    """On the CPU: what large images cost beyond their share of tokens, and a look for who still waits for a pack.

    On a GPU the graphs' ladder tells the former, and what is issued cannot be stopped.
    """
    if not isinstance(runner, Runner):
        return None
    assert isinstance(runner.tower.ops, PlainOps), "a CPU computes with PyTorch: this is a bug"
    runner.tower.ops.between_parts = inbox.check
    least = least_cost(runner.tower.plan, runner.dtype)
    typical = TYPICAL_TOKENS * runner.executable.buffers.geometry.merge_area
    return LadderChanged(ready.budgets, least.ms_per_patch2, typical, is_final=True, graph_bytes=0, least=least)


def _take_packs(
    channel: Channel[ToWorker], inbox: Inbox, runner: PackRunner, ladder: GraphLadder | None, finisher: Finisher
) -> None:
    while not finisher.is_device_broken:
        if ladder is not None and ladder.is_pending and not inbox.has_message():
            finisher.wait_idle()
            channel.send(Progress("ready, capturing a graph"))  # packs that come meanwhile wait for it
            channel.send(ladder.capture_next())
            continue
        pack = inbox.next()
        if pack is None:
            return
        assert isinstance(pack, RunPack), "a worker was configured twice: this is a bug"
        finisher.expect(pack, _submitted(runner, pack))


def _submitted(runner: PackRunner, pack: RunPack) -> Pending:
    try:
        return runner.submit(pack)
    except Exception as error:  # answered in its turn, like every other pack
        return NotIssued(error)


@dataclass(frozen=True)
class NotIssued:
    """A pack that could not be issued."""

    error: Exception

    def finish(self) -> PackDone:
        """Raise why."""
        raise self.error


class Finisher(threading.Thread):
    """Waits for packs under way, in order, and tells the parent what became of them."""

    def __init__(self, channel: Channel[ToWorker], runner: PackRunner) -> None:
        super().__init__(name="finisher", daemon=True)
        self.is_device_broken = False
        self._channel, self._runner = channel, runner
        self._asked, self._device_bytes = 0.0, 0
        self._under_way: queue.Queue[tuple[RunPack, Pending] | None] = queue.Queue()

    def expect(self, pack: RunPack, pending: Pending) -> None:
        """Answer this pack when it ends."""
        self._under_way.put((pack, pending))

    def wait_idle(self) -> None:
        """Return when nothing is under way."""
        self._under_way.join()

    def stop(self) -> None:
        """Answer what is under way, then end."""
        self._under_way.put(None)
        self.join()

    def run(self) -> None:
        """The thread."""
        while (waiting := self._under_way.get()) is not None:
            pack, pending = waiting
            try:
                done = pending.finish()
                self._channel.send(msgspec.structs.replace(done, device_bytes=self._memory()))
            except PackAbandoned:
                self._channel.send(PackGivenUp(pack.id))
            except ConnectionError:
                self._channel.close()  # the parent left while this process computed
            except Exception as error:
                self._fail(pack, error)
            finally:
                self._under_way.task_done()
        self._under_way.task_done()

    def _memory(self) -> int:
        """Device memory, asked for at most once a second: torch takes a tenth of a millisecond to tell."""
        now = time.monotonic()
        if now - self._asked > MEMORY_SECONDS:
            self._asked, self._device_bytes = now, device_bytes(self._runner.device)
        return self._device_bytes

    def _fail(self, pack: RunPack, error: Exception) -> None:
        """Whatever a pack raises fails this pack; the worker lives on if the device does."""
        log.error("pack failed", exc_info=error, extra={"items": len(pack.items), "budget": pack.budget})
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        self.is_device_broken = not _device_lives(self._runner)
        used = 0 if self.is_device_broken else device_bytes(self._runner.device)
        self._channel.send(PackFailed(pack.id, reason, self.is_device_broken, used))
        if self.is_device_broken:
            self._channel.close()  # wakes the main thread, which ends the process


def _device_lives(runner: PackRunner) -> bool:
    """Ask the device itself: after a fault in a kernel every later call fails, after a lack of memory none does."""
    try:
        synchronize(runner.device)
    except RuntimeError:
        return False
    return True
