"""One worker's life on its socket: configured once, then pack after pack until the parent is gone."""

from __future__ import annotations

import logging

from foveal.errors import ConfigurationError
from foveal.gpu.runner import Runner, device_bytes, synchronize
from foveal.gpu.start import start
from foveal.ipc.arena import MappedArena
from foveal.ipc.channel import Channel
from foveal.ipc.messages import Configure, PackDone, PackFailed, Progress, RunPack, StartFailed, ToWorker

log = logging.getLogger(__name__)


def serve(channel: Channel[ToWorker], arenas: dict[str, MappedArena]) -> int:
    """Answer until the socket ends; returns the exit code."""
    configure = channel.receive()
    if configure is None:
        return 0
    assert isinstance(configure, Configure), "a pack came before the configuration: this is a bug"
    try:
        runner, ready = start(configure, arenas, lambda stage: channel.send(Progress(stage)))
    except ConfigurationError as error:
        channel.send(StartFailed(str(error)))
        return 2
    channel.send(ready)
    while (pack := channel.receive()) is not None:
        assert isinstance(pack, RunPack), "a worker was configured twice: this is a bug"
        answer = run_pack(runner, pack)
        channel.send(answer)
        if isinstance(answer, PackFailed) and answer.fatal:
            return 1
    return 0


def run_pack(runner: Runner, pack: RunPack) -> PackDone | PackFailed:
    """Encode one pack; whatever it raises fails this pack, and the worker lives on if the device does."""
    try:
        return runner.run(pack)
    except Exception as error:
        log.exception("pack failed", extra={"items": len(pack.items), "budget": pack.budget})
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        fatal = not _device_lives(runner)
        return PackFailed(pack.id, reason, fatal, 0 if fatal else device_bytes(runner.device))


def _device_lives(runner: Runner) -> bool:
    """Ask the device itself: after a fault in a kernel every later call fails, after a lack of memory none does."""
    try:
        synchronize(runner.device)
    except RuntimeError:
        return False
    return True
