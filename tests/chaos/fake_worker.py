"""A worker program that speaks the worker's protocol and computes nothing: each pack takes as long as it is told.

Each embedding is a digest of its rows, so that a stranger's cannot pass for one's own. Told by variables:
CHAOS_PACK_MS is a pack's time, CHAOS_HANG=start makes it hang before it is ready, CHAOS_FAIL=start makes it fail there,
and CHAOS_FAIL=PATH as soon as that file exists. CHAOS_HANG=WAY:PATH makes the one that finds that file, and takes it
away, hang with a pack in hand: it waits (its heart beats on), spins (the same, computing) or is mute (it keeps the
interpreter to itself).
"""

from __future__ import annotations

import ctypes
import faulthandler
import hashlib
import signal
import sys
import threading
import time
from os import environ  # noqa: TID251 - a test program, told by variables
from pathlib import Path
from typing import cast

import numpy as np

from foveal.ipc.arena import MappedArena
from foveal.ipc.channel import Channel
from foveal.ipc.child import join_parent
from foveal.ipc.messages import Configure, PackDone, RunPack, ToWorker, WorkerReady
from foveal.types import TokenBudget


def digest_of(rows: bytes, length: int) -> bytes:
    """The embedding of these rows, as bytes of finite bfloat16 values."""
    return (hashlib.sha256(rows).hexdigest().encode() * (length // 64 + 1))[:length]


def main() -> int:
    """Run the worker."""
    faulthandler.register(signal.SIGUSR1, file=2)
    channel, arenas = join_parent("fake", cast(type[ToWorker], ToWorker), ["rows", "embeddings"])
    configure = channel.receive()
    if not isinstance(configure, Configure):
        return 0
    if environ.get("CHAOS_HANG") == "start":
        threading.Event().wait()
    fails = environ.get("CHAOS_FAIL", "")
    if fails == "start" or Path(fails or "/nowhere").exists():
        raise RuntimeError("this worker fails at start, as it was told")
    seconds = float(environ.get("CHAOS_PACK_MS", "5")) / 1000
    budgets = tuple(
        TokenBudget(tokens, min(tokens, configure.max_items), seconds * 1000) for tokens in configure.token_budgets
    )
    channel.send(WorkerReady("cpu", "float32", "none", budgets, 0, 0, 0.0, "none"))
    while isinstance(pack := channel.receive(), RunPack):
        _hang(*environ.get("CHAOS_HANG", ":/nowhere").split(":"))
        _answer(channel, arenas, pack, seconds)
    return 0


def _hang(way: str, path: str) -> None:
    try:
        Path(path).unlink()
    except FileNotFoundError:
        return
    if way == "mute":
        ctypes.PyDLL(None).pause()  # unlike CDLL it does not let other threads run meanwhile
    while way == "spin":
        pass
    threading.Event().wait()


def _answer(channel: Channel[ToWorker], arenas: dict[str, MappedArena], pack: RunPack, seconds: float) -> None:
    end = time.monotonic() + seconds
    for item in pack.items:
        made = digest_of(arenas["rows"].view(item.rows).tobytes(), item.embedding.length)
        arenas["embeddings"].view(item.embedding)[:] = np.frombuffer(made, np.uint8)
    threading.Event().wait(max(0.0, end - time.monotonic()))
    mode = "static" if pack.budget else "eager"
    channel.send(PackDone(pack.id, mode, 0.0, seconds, 0.0))  # type: ignore[arg-type]


if __name__ == "__main__":
    sys.exit(main())
