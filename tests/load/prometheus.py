"""A Prometheus of one's own for as long as a `with` lasts, run with the repository's configuration."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import yaml

CONFIG = Path(__file__).parents[2] / "deploy" / "prometheus" / "prometheus.yml"
SCRAPE_SECONDS = 1
READY_SECONDS = 30.0
EXEMPLAR_SECONDS = 600


class QueryFailed(Exception):
    """Prometheus refuses the expression; the text is its own."""


@dataclass(frozen=True)
class Prometheus:
    """A running one."""

    http: httpx.Client

    def query(self, expr: str) -> list[dict[str, Any]]:
        """The vector of an expression now."""
        answer = self.http.get("/api/v1/query", params={"query": expr}).json()
        if answer["status"] != "success":
            raise QueryFailed(answer["error"])
        result = answer["data"]["result"]
        return result if answer["data"]["resultType"] == "vector" else [{"metric": {}, "value": result}]

    def knows(self, sample: str) -> bool:
        """True if a scrape told of the family of a sample, with series or without."""
        told = self.http.get("/api/v1/metadata").json()["data"]
        return any(sample.removesuffix(end) in told for end in ("", "_total", "_bucket", "_count", "_sum"))

    def exemplars(self, metric: str) -> list[dict[str, str]]:
        """The labels of its exemplars of the last minutes."""
        now = time.time()
        params = {"query": metric, "start": str(now - EXEMPLAR_SECONDS), "end": str(now)}
        answer = self.http.get("/api/v1/query_exemplars", params=params).json()
        return [one["labels"] for series in answer["data"] for one in series["exemplars"]]

    def is_ready(self) -> bool:
        try:
            return self.http.get("/-/ready").status_code == 200
        except httpx.TransportError:
            return False


def config_for(target: str) -> str:
    """The repository's configuration with another target and a shorter interval."""
    config = yaml.safe_load(CONFIG.read_text())
    config["global"] = {"scrape_interval": f"{SCRAPE_SECONDS}s", "evaluation_interval": f"{SCRAPE_SECONDS}s"}
    config["rule_files"] = [str(CONFIG.parent / name) for name in config["rule_files"]]
    for job in config["scrape_configs"]:
        job["static_configs"] = [{"targets": [target]}]
    return yaml.safe_dump(config)


@contextlib.contextmanager
def watching(target: str) -> Iterator[Prometheus | None]:
    """A Prometheus that scrapes HOST:PORT; None where there is no such program."""
    program = shutil.which("prometheus")
    if program is None:
        yield None
        return
    with tempfile.TemporaryDirectory() as folder, httpx.Client(trust_env=False, timeout=10) as http:
        config, port = Path(folder, "prometheus.yml"), free_port()
        config.write_text(config_for(target))
        flags = [f"--config.file={config}", f"--storage.tsdb.path={folder}/data", "--log.level=warn"]
        flags.append("--enable-feature=exemplar-storage")
        process = subprocess.Popen([program, *flags, f"--web.listen-address=127.0.0.1:{port}"])
        try:
            http.base_url = httpx.URL(f"http://127.0.0.1:{port}")
            running, end = Prometheus(http), time.monotonic() + READY_SECONDS
            while not running.is_ready():
                assert process.poll() is None, "Prometheus ended; its log above says why"
                assert time.monotonic() < end, "Prometheus does not become ready"
                time.sleep(0.1)
            yield running
        finally:
            process.terminate()
            process.wait()


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])
