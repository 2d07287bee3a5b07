"""`foveal encode` as a process of its own, stopped in the middle."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import safetensors

from .conftest import POLL_SECONDS, Running
from .test_encode import noise

NUM = 120


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGKILL"])
def test_a_stopped_command_keeps_what_it_has_and_the_next_goes_on(server: Running, tmp_path: Path, name: str) -> None:
    (tmp_path / "in").mkdir()
    for n in range(NUM):
        (tmp_path / "in" / f"{n:03}.png").write_bytes(noise(60, 60, 7000 + n))
    out = tmp_path / "out" / "all.safetensors"
    command = [sys.executable, "-m", "foveal", "encode", str(tmp_path / "in"), "--output-file", str(out)]
    environment = os.environ | {"FOVEAL_URL": server.url}  # noqa: TID251
    first = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    partial, pause = out.with_name("all.safetensors.partial"), threading.Event()
    # The first header that tells of pictures replaces blanks.
    while first.poll() is None and not (partial.exists() and b"001.png" in partial.read_bytes()[:1_000_000]):
        pause.wait(POLL_SECONDS)
    number = getattr(signal, name)
    first.send_signal(number)
    _, said = first.communicate(timeout=60)
    assert first.returncode == (-number if name == "SIGKILL" else 128 + number), said
    assert not out.exists() and partial.exists()
    if name != "SIGKILL":
        assert f"stopped by {name}" in said and f"are kept in {partial}" in said and "Traceback" not in said
        assert safetensors.deserialize(partial.read_bytes())
    second = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    assert second.returncode == 0, second.stderr
    assert "of them by an earlier run" in second.stderr
    assert len(safetensors.deserialize(out.read_bytes())) == NUM and not partial.exists()
