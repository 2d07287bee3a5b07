"""What the prep process gives up before it meets a caller's bytes: files, network, most of the memory.

A decoder is the likeliest place for a stranger's bytes to go wrong. So the process that runs it can open nothing:
with no descriptor left to hand out, the kernel refuses every file, socket and pipe. That needs no privilege, no
namespace and no help of the container, and holds for libraries as for our own code.
"""

from __future__ import annotations

import ctypes
import os
import resource
import stat
import sys

from foveal.vision import heif

MEMORY_BYTES = 2 << 30
"""Where the parent names no limit."""
_PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS = 4, 38
_STDERR = 2


def keep_libraries_quiet() -> None:
    """Let nothing but our own log reach standard error; call it before logging is set up.

    Decoders complain there of what they read, and one small file can make them print gigabytes.
    """
    sys.stderr = os.fdopen(os.dup(_STDERR), "w", buffering=1, errors="backslashreplace")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, _STDERR)
    os.close(nowhere)


def confine(memory_bytes: int) -> None:
    """Give up, for good, all but the descriptors that are open and `memory_bytes` beside what is mapped now.

    Call it when everything is imported and warmed up: no module can be loaded afterwards. Raises OSError where the
    kernel refuses.
    """
    _forbid(_PR_SET_NO_NEW_PRIVS, 1)
    _forbid(_PR_SET_DUMPABLE, 0)  # a dump would hold callers' pictures, and take as long as it is large
    _lower(resource.RLIMIT_CORE, 0)
    _lower(resource.RLIMIT_AS, _mapped_bytes() + memory_bytes)
    if not stat.S_ISREG(os.fstat(sys.stderr.fileno()).st_mode):  # where the log goes to a file it may grow
        _lower(resource.RLIMIT_FSIZE, 0)
    if not heif.is_installed():  # its decoder starts a thread for each picture
        _lower(resource.RLIMIT_NPROC, 0)  # root is exempt; threads that run already go on
    _lower(resource.RLIMIT_NOFILE, 0)


def _lower(kind: int, limit: int) -> None:
    _, hard = resource.getrlimit(kind)
    limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    resource.setrlimit(kind, (limit, limit))


def _forbid(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}) failed")


def _mapped_bytes() -> int:
    """Address space in use: libraries, the arenas, what was allocated."""
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[0]) * resource.getpagesize()
