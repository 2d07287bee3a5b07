"""Children that hang: noticed, replaced, and their callers answered, whatever kind of hanging it is."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from foveal_client import Client, DeadlineExceeded, TooLarge
from tests.chaos.pictures import marked

from .conftest import Running, serving
from .test_encode import noise
from .test_hostile import connect, head

FAKE = ("tests.chaos.serve",)
TWO = ("--cpu-workers", "2", "--cpu-threads", "1", "--prep-workers", "1", "--ready-quorum", "2")
PATIENCE_SECONDS = 60


def restarts(running: Running) -> float:
    return running.metric("foveal_worker_restarts_total")


def encode_during(running: Running, count: int, side: int, meanwhile: Callable[[], None]) -> None:
    """Every one of so many callers gets an answer within its patience, whatever happens meanwhile."""
    picture = noise(side, side, 1)
    with Client(running.url, max_retries=0, timeout=PATIENCE_SECONDS) as client, ThreadPoolExecutor(count) as pool:
        calls = [pool.submit(client.encode, marked(picture, number)) for number in range(count)]
        meanwhile()
        assert all(call.result().tokens > 0 for call in calls)


def test_the_packs_of_a_stopped_worker_run_elsewhere_within_their_callers_patience() -> None:
    with serving(*TWO) as running:
        victim = int(running.info()["workers"][0]["pid"])

        def stop() -> None:
            running.until(lambda: running.metric("foveal_inflight_items") > 4)
            os.kill(victim, signal.SIGSTOP)
            running.until(lambda: running.metric("foveal_worker_up") < 2)

        encode_during(running, 10, 900, stop)
        running.until(lambda: restarts(running) == 1)
        running.wait_ready()
        assert running.info()["workers"][0]["pid"] != victim
        assert "is stopped" in "".join(running.lines)


def test_a_worker_that_idles_and_one_that_starts_are_replaced_when_they_are_stopped() -> None:
    with serving("--prep-workers", "1", "--cpu-threads", "1") as running:
        for seen in (1, 2):
            running.until(lambda: running.info()["workers"][0]["pid"] is not None)
            os.kill(int(running.info()["workers"][0]["pid"]), signal.SIGSTOP)
            running.until(lambda: httpx.get(running.url + "/ready", trust_env=False).status_code == 503)
            running.until(lambda seen=seen: restarts(running) == seen)  # type: ignore[misc]
        running.wait_ready()
        with Client(running.url) as client:
            assert client.encode(noise(50, 50, 1)).tokens > 0


@pytest.mark.parametrize("way", ["wait", "spin", "mute"])
def test_a_worker_that_locks_up_with_a_pack_is_replaced_and_nobody_is_refused(way: str, tmp_path: Path) -> None:
    once = tmp_path / "once"
    flags = (*TWO, "--worker-timeout-seconds", "2", "--cache-bytes", "0")
    with serving(*flags, program=FAKE, variables={"CHAOS_HANG": f"{way}:{once}"}) as running:
        encode_during(running, 8, 100, once.touch)
        encode_during(running, 8, 100, lambda: None)
        running.until(lambda: restarts(running) == 1)
        running.wait_ready()
        assert "most recent call first" in "".join(running.lines), "it says where"


def test_a_stopped_prep_process_costs_nobody_an_answer_whether_it_idles_or_works() -> None:
    with serving("--prep-workers", "1", "--cpu-threads", "1") as running:
        prep = running.info()["prep_workers"][0]
        os.kill(int(prep["pid"]), signal.SIGSTOP)
        running.until(lambda: running.info()["prep_workers"][0]["restarts"] == 1)
        running.wait_ready()
        os.kill(int(running.info()["prep_workers"][0]["pid"]), signal.SIGSTOP)
        encode_during(running, 3, 100, lambda: None)
        running.until(lambda: running.info()["prep_workers"][0]["restarts"] == 2)


def test_what_nobody_waits_for_any_more_is_left_and_the_next_is_served() -> None:
    picture = noise(2400, 2400, 1)  # seconds of work
    with serving("--prep-workers", "1", "--cpu-workers", "1", "--cpu-threads", "1") as running:
        with connect(running) as caller:
            caller.sendall(head(len(picture)) + picture)
            running.until(lambda: running.metric("foveal_inflight_items") == 1)
            running.until(lambda: not running.metric("foveal_prep_queue_items"))
            # its rows are there when nothing of the picture as sent is held any more: the worker has it in hand
            running.until(lambda: not running.gauge("foveal_arena_bytes", 'arena="images"'))
        running.until(lambda: running.packs("given_up") == 1)
        with Client(running.url, max_retries=0, timeout=PATIENCE_SECONDS) as client:
            assert client.encode(noise(64, 64, 2)).tokens > 0
        running.until(running.is_empty)


def test_a_picture_that_no_idle_server_could_encode_in_time_is_refused_before_it_is_decoded() -> None:
    flags = ("--prep-workers", "1", "--cpu-threads", "1", "--request-timeout-seconds", "0.5")
    with serving(*flags) as running, Client(running.url, max_retries=0, timeout=PATIENCE_SECONDS) as client:
        with pytest.raises((TooLarge, DeadlineExceeded)):
            client.encode(noise(3000, 3000, 1))
        assert running.metric("foveal_packs_total") == 0
