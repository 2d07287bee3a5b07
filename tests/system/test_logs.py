"""Every line of a JSON log is JSON, on both streams, from the first line to the last, whatever happens meanwhile."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import httpx

from foveal.settings import process_environment
from tests.system.conftest import Running, start
from tests.system.test_encode import noise


def lines_of(running: Running) -> list[dict]:
    """Whatever it has printed, each line parsed."""
    return [json.loads(line) for line in running.lines]


def test_every_line_of_a_json_log_is_json() -> None:
    running = start("--log-format", "json", "--prep-workers", "1")
    try:
        running.wait_ready()
        with httpx.Client(base_url=running.url, trust_env=False, timeout=60) as http:
            assert http.post("/encode", content=noise(50, 50, 1)).status_code == 200
            assert http.post("/encode", content=b"no picture").status_code == 415
            assert http.get("/nowhere").status_code == 404
        info = running.info()
        os.kill(info["workers"][0]["pid"], signal.SIGKILL)
        os.kill(info["prep_workers"][0]["pid"], signal.SIGKILL)
        running.until(lambda: running.info()["workers"][0]["restarts"] > 0)
        running.wait_ready()
    finally:
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(30) == 0
    running.until(lambda: any("draining" in line for line in running.lines))
    told = lines_of(running)
    assert any(line.get("url") == running.url for line in told)
    assert {"request", "child process lost", "draining"} <= {line["message"] for line in told}


def test_what_nobody_caught_is_a_line_of_json() -> None:
    program = (
        "from foveal.logs import set_up; import threading, warnings; set_up('info', 'json'); warnings.warn('odd');"
        "t = threading.Thread(target=lambda: 1 / 0); t.start(); t.join(); {}['missing']"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=process_environment())
    told = [json.loads(line) for line in run.stderr.splitlines()]
    assert run.returncode == 1 and "odd" in told[0]["message"]
    assert [line["exception"].splitlines()[-1] for line in told[1:]] == [
        "ZeroDivisionError: division by zero",
        "KeyError: 'missing'",
    ]
