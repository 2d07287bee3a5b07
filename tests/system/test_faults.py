"""Children that die, a parent that dies, signals: nobody hangs, nothing is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx

from foveal_client import Client, ConnectionFailed, Draining

from .conftest import Running, serving, start
from .test_encode import noise


def pid_of(running: Running, kind: str) -> int:
    return int(running.info()[kind][0]["pid"])


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_live_answers_at_once_and_ready_says_what_it_waits_for() -> None:
    with serving("--prep-workers", "1", ready=False) as running:
        assert httpx.get(running.url + "/live", trust_env=False).status_code == 200
        ready = httpx.get(running.url + "/ready", trust_env=False)
        assert ready.status_code == 503 and "not ready" in ready.json()["error"]["message"]
        running.wait_ready()


def test_a_killed_worker_costs_nobody_an_answer() -> None:
    with serving("--cpu-workers", "2", "--prep-workers", "1", "--ready-quorum", "2") as running:
        victim = pid_of(running, "workers")
        with Client(running.url, max_retries=0, timeout=60) as client, ThreadPoolExecutor(8) as pool:
            calls = [pool.submit(client.encode, noise(300, 300, i)) for i in range(40)]
            calls[3].result()
            os.kill(victim, signal.SIGKILL)
            assert all(call.result().tokens > 0 for call in calls)
        running.until(lambda: running.info()["workers"][0]["pid"] not in (None, victim))
        running.wait_ready()
        assert running.metric("foveal_worker_restarts_total") == 1


def test_a_killed_prep_process_is_replaced() -> None:
    with serving("--prep-workers", "1") as running:
        os.kill(pid_of(running, "prep_workers"), signal.SIGKILL)
        running.until(lambda: running.info()["prep_workers"][0]["restarts"] == 1)
        running.wait_ready()
        with Client(running.url) as client:
            assert client.encode(noise(50, 50, 1)).tokens > 0


def test_sigterm_finishes_what_was_accepted_and_ends_with_zero() -> None:
    running = start("--prep-workers", "1", "--cpu-threads", "1")
    running.wait_ready()
    children = running.children()
    with Client(running.url, max_retries=0, timeout=60) as client, ThreadPoolExecutor(4) as pool:
        calls = [pool.submit(client.encode, noise(600, 600, seed)) for seed in range(4)]
        running.until(lambda: running.metric("foveal_inflight_items") > 0 or any(c.done() for c in calls))
        running.process.send_signal(signal.SIGTERM)
        outcomes = [call.exception() for call in calls]
    assert None in outcomes, "what was accepted before the signal was not answered"
    assert all(outcome is None or isinstance(outcome, Draining | ConnectionFailed) for outcome in outcomes), outcomes
    assert running.process.wait(30) == 0
    assert not any(alive(child) for child in children)


def test_when_the_parent_is_killed_its_children_end() -> None:
    running = start("--prep-workers", "1")
    running.wait_ready()
    children = running.children()
    assert len(children) == 2
    running.process.kill()
    running.process.wait()
    running.until(lambda: not any(alive(child) for child in children))


def test_a_model_whose_weights_are_missing_is_refused_with_exit_code_2(tmp_path: Path) -> None:
    tiny = Path(__file__).parents[2] / "service/foveal/builtin/tiny"
    for path in tiny.glob("*.json"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    running = start("--model", str(tmp_path))
    assert running.process.wait(60) == 2


def test_wrong_settings_end_with_exit_code_2_and_a_sentence() -> None:
    for flags, word in (
        (["--no-such-setting", "1"], "no-such-setting"),
        (["--token-budgets", "0"], "token-budgets"),
        (["--model", "./no/such/checkpoint"], "no/such/checkpoint"),
        (["--device", "cpu", "--ready-quorum", "9"], "ready-quorum"),
        (["--api-key-file", "/no/such/file"], "api-key-file"),
    ):
        command = [sys.executable, "-m", "foveal", "serve", "--port", "0", *flags]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert ended.returncode == 2 and word in ended.stderr, (flags, ended.stderr)
        assert "Traceback" not in ended.stderr


def test_a_port_in_use_is_a_sentence() -> None:
    with serving(ready=False) as running:
        port = running.url.rsplit(":", 1)[1]
        command = [sys.executable, "-m", "foveal", "serve", "--port", port]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert ended.returncode == 2 and port in ended.stderr
