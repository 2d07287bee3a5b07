"""What every child process does first: find its socket and arenas, and never outlive its parent.

A child is started as `python -m foveal.vision|foveal.gpu --socket FD --images FD ...`: file descriptors that it
inherited. It ends when its socket closes; the kernel kills it should the parent die while it computes. From here on,
so also while it imports what it needs, a thread tells the parent that it lives.
"""

from __future__ import annotations

import argparse
import ctypes
import signal
import socket
from collections.abc import Sequence
from typing import TypeVar

from foveal.ipc.arena import MappedArena
from foveal.ipc.channel import Channel
from foveal.ipc.heart import Heart
from foveal.logs import set_up

Received = TypeVar("Received")
_PR_SET_PDEATHSIG = 1


def join_parent(
    program: str, receives: type[Received], arena_names: Sequence[str], arguments: Sequence[str] | None = None
) -> tuple[Channel[Received], dict[str, MappedArena]]:
    """Parse the command line (or what a program left of it), map the arenas, tie this life to the parent's."""
    parser = argparse.ArgumentParser(prog=program, description="A child process of foveal serve.")
    parser.add_argument("--socket", type=int, required=True, help="inherited file descriptor of the socket")
    for name in arena_names:
        parser.add_argument(f"--{name}", type=int, required=True, help=f"file descriptor of the {name} arena")
    parser.add_argument("--heartbeat-seconds", type=float, default=0.0, help="time between signs of life; 0: none")
    parser.add_argument("--log-level", default="info", help="least level that is logged")
    parser.add_argument("--log-format", default="json", choices=("json", "text"), help="form of the log lines")
    args = vars(parser.parse_args(arguments))
    set_up(args["log_level"], args["log_format"])
    die_with_parent()
    channel: Channel[Received] = Channel(socket.socket(fileno=args["socket"]), receives)
    if args["heartbeat_seconds"]:
        Heart(channel, args["heartbeat_seconds"]).start()
    return channel, {name: MappedArena(args[name]) for name in arena_names}


def die_with_parent() -> None:
    """Ask the kernel for SIGKILL when the parent dies, and leave stopping to the parent.

    Ctrl-C and a service manager's SIGTERM reach the whole group; only the parent knows what must finish first.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
