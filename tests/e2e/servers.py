"""Started processes: a vLLM and a foveal on free ports, their logs in files, stopped as process groups."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from foveal.settings import process_environment

ROOT = Path(__file__).parents[2]
START_SECONDS = 300.0
STOP_SECONDS = 30.0
POLL_SECONDS = 0.2
MODEL = "tiny"
VLLM_VARIABLES = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_HOST_IP": "127.0.0.1",
    "OMP_NUM_THREADS": "2",
    "PYTHONPATH": str(ROOT / "client"),
}


@dataclass
class Server:
    """A running server."""

    name: str
    url: str
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    def wait_ready(self, path: str) -> None:
        """Until `path` answers 200. Raises RuntimeError with the log's end when the process ends or takes too long."""
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end and self.is_alive:
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(self.url + path, trust_env=False).status_code == 200:
                    return
            time.sleep(POLL_SECONDS)  # a script that waits for a process
        raise RuntimeError(f"{self.name} did not start:\n{self.tail()}")

    def tail(self, count: int = 40) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-count:])

    def signal(self, number: int) -> None:
        """To the server and all its children."""
        os.killpg(self.process.pid, number)

    def stop(self) -> None:
        """Ask, then insist."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(STOP_SECONDS)
            self.signal(signal.SIGKILL)
        self.process.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def started(
    name: str, command: Sequence[str], port: int, log: Path, ready: str, environment: Mapping[str, str]
) -> Iterator[Server]:
    """A process that serves on `port`, once it is ready."""
    with log.open("ab") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**process_environment(), **environment},
            start_new_session=True,
            cwd=ROOT,
        )
    server = Server(name, f"http://127.0.0.1:{port}", process, log)
    try:
        server.wait_ready(ready)
        yield server
    finally:
        server.stop()


@contextmanager
def vllm(python: Path, checkpoint: Path, log: Path, port: int, ec: Mapping[str, Any] | None = None) -> Iterator[Server]:
    """vLLM's OpenAI server in float32; with `ec`, as the consumer of an encoder cache."""
    numbers = {"max-model-len": 4096, "max-num-seqs": 16, "max-num-batched-tokens": 4096, "seed": 0, "port": port}
    command = [str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(checkpoint)]
    command += ["--served-model-name", MODEL, "--host", "127.0.0.1", "--dtype", "float32", "--enforce-eager"]
    command += [f"--{name}={value}" for name, value in numbers.items()]
    command += [
        "--enable-mm-embeds",
        "--no-enable-prefix-caching",
        "--skip-mm-profiling",
        "--limit-mm-per-prompt",
        json.dumps({"image": 8}),
    ]
    if ec is not None:
        command += ["--ec-transfer-config", json.dumps({"ec_role": "ec_consumer", **ec})]
    with started("vllm", command, port, log, "/health", VLLM_VARIABLES) as server:
        yield server


@contextmanager
def foveal(checkpoint: Path, log: Path, *options: str, port: int | None = None) -> Iterator[Server]:
    """foveal on the same weights, in float32 on the CPU."""
    port = port or free_port()
    command = [str(ROOT / ".venv" / "bin" / "foveal"), "serve", "--model", str(checkpoint), "--device", "cpu"]
    command += ["--dtype", "float32", "--host", "127.0.0.1", "--port", str(port), "--prep-workers", "1", *options]
    with started("foveal", command, port, log, "/ready", {"OMP_NUM_THREADS": "1"}) as server:
        yield server
