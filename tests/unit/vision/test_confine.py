"""What a confined process cannot do any more: tried by one, from the inside."""

from __future__ import annotations

import json
import resource
import socket
import subprocess
import sys
from typing import Any

import pytest

TRIES = """
import ctypes, json, os, socket, subprocess, sys
from foveal.vision.confine import confine, keep_libraries_quiet
port, ours = int(sys.argv[1]), socket.socketpair()
answers = os.fdopen(os.dup(1), "w")
keep_libraries_quiet()
confine(64 << 20)
tries = {
    "connection": lambda: socket.create_connection(("127.0.0.1", port)),
    "datagram": lambda: socket.socket(type=socket.SOCK_DGRAM),
    "unix socket": lambda: socket.socketpair(),
    "file": lambda: open("/etc/hostname"),
    "new file": lambda: open("/tmp/foveal-must-not-exist", "w"),
    "pipe": os.pipe,
    "program": lambda: subprocess.run(["true"]),
    "copy": lambda: os.dup(0),
    "memory": lambda: bytearray(65 << 20),
}
found = {}
for name, attempt in tries.items():
    try:
        attempt()
        found[name] = "done"
    except BaseException as error:
        found[name] = type(error).__name__
ours[0].sendall(b"still there")
found["descriptors that were open"] = ours[1].recv(100).decode()
found["memory below the limit"] = len(bytearray(30 << 20))
ctypes.CDLL(None).perror(b"a library")
sys.stderr.write("our own log")
json.dump(found, answers)
answers.flush()
"""


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0)
        port = str(listener.getsockname()[1])
        run = subprocess.run([sys.executable, "-c", TRIES, port], capture_output=True, timeout=120)
        with pytest.raises(BlockingIOError):
            listener.accept()
    return json.loads(run.stdout) | {"stderr": run.stderr.decode()}


@pytest.mark.parametrize("what", ["connection", "datagram", "unix socket", "file", "new file", "pipe", "copy"])
def test_nothing_can_be_opened(found: dict[str, Any], what: str) -> None:
    assert found[what] in ("OSError", "PermissionError")


def test_no_program_can_be_started(found: dict[str, Any]) -> None:
    assert found["program"] in ("OSError", "BlockingIOError")


def test_memory_beyond_the_limit_is_refused_and_below_it_given(found: dict[str, Any]) -> None:
    assert found["memory"] == "MemoryError" and found["memory below the limit"] == 30 << 20


def test_what_was_open_goes_on_working(found: dict[str, Any]) -> None:
    assert found["descriptors that were open"] == "still there"


def test_only_our_own_log_reaches_standard_error(found: dict[str, Any]) -> None:
    assert found["stderr"] == "our own log"


def test_this_process_kept_its_own_limits() -> None:
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 0
