"""The scenarios of `make chaos`, short: real processes and sockets, the fake worker, no thresholds of time."""

from __future__ import annotations

import asyncio
import os
import random
import re
import signal
import socket
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from foveal.engine.pool import MAX_STARTS
from tests.chaos.flood import FLAGS, PACK_MS, flood
from tests.chaos.pictures import flat_png, gallery, marked
from tests.chaos.storm import Weather, in_calm, storm
from tests.chaos.wire import Caller
from tests.system.conftest import Running, serving, start
from tests.system.test_encode import noise

FAKE = ("tests.chaos.serve",)
STORM_FLAGS = ("--cpu-workers", "2", "--prep-workers", "1", "--worker-timeout-seconds", "0.5", "--cache-bytes", "2MiB")


async def test_in_a_storm_everyone_gets_their_own_embedding_and_nothing_leaks() -> None:
    with serving(*STORM_FLAGS, program=FAKE, variables={"CHAOS_PACK_MS": "3"}) as running:
        pictures = gallery(30, seed=1)
        weather = Weather(running, pictures, await in_calm(running.url, pictures), random.Random(1))
        await storm(weather, requests=600, callers=24, kill_every=150)
        await asyncio.to_thread(running.until, running.is_empty)
        assert weather.seen["ok"] > 300 and weather.kills > 0, weather.seen


KEYS = ("--api-key", "bulk", "--api-key", "single")
SINGLE, BULK = "Authorization: Bearer single", "Authorization: Bearer bulk"


@pytest.fixture(scope="module")
def small() -> Iterator[Running]:
    """A server that is soon full, for all tests that leave it empty."""
    with serving(*FLAGS, program=FAKE, variables={"CHAOS_PACK_MS": PACK_MS}) as running:
        yield running


async def test_a_flood_is_answered_or_refused_and_leaves_nothing(small: Running) -> None:
    found = await flood(small, seconds=0.3, times=15.0)
    assert found.goodput > 0 and found.refused and not found.others and found.live
    await asyncio.to_thread(small.until, small.is_empty)


async def test_who_hangs_up_leaves_nothing_and_the_next_is_served(small: Running) -> None:
    picture = noise(50, 50, 1)
    calls = [Caller(small.url).encode(marked(picture, i), leave_after=0.05 + i / 1000) for i in range(100)]
    replies = await asyncio.gather(*calls)
    assert {reply.status for reply in replies} <= {0, 200, 503}
    await asyncio.to_thread(small.until, small.is_empty)
    assert (await Caller(small.url).encode(marked(picture, 999))).status == 200


async def test_a_small_picture_is_answered_before_sixteen_large_ones_are_decoded() -> None:
    flags = ("--prep-workers", "2", "--cache-bytes", "0", "--token-budgets", "64,256", "--max-image-tokens", "256")
    with serving(*flags, program=FAKE, variables={"CHAOS_PACK_MS": "1"}) as running:
        large = flat_png(5000)
        bombs = [
            asyncio.create_task(Caller(running.url).encode(marked(large, i), query="?max_pixels=65536"))
            for i in range(16)
        ]
        await asyncio.to_thread(running.until, lambda: running.metric("foveal_prep_queue_items") > 8)
        for i in range(3):
            assert (await Caller(running.url).encode(marked(noise(50, 50, 1), i))).status == 200
        assert sum(bomb.done() for bomb in bombs) < 16
        assert {reply.status for reply in await asyncio.gather(*bombs)} <= {200, 504}  # late, on a busy machine
        await asyncio.to_thread(running.until, running.is_empty)


async def test_slow_readers_hold_only_what_is_counted(small: Running) -> None:
    data = noise(50, 50, 3)
    host, port = small.url.removeprefix("http://").split(":")
    head = f"POST /encode?dtype=float32 HTTP/1.1\r\nHost: f\r\nContent-Length: {len(data)}\r\n"
    head += "Content-Type: image/png\r\nX-Request-Timeout-Ms: 3000\r\n\r\n"
    slow = []
    for _ in range(20):
        sock = socket.create_connection((host, int(port)))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        await asyncio.to_thread(sock.sendall, head.encode() + data)
        slow.append(sock)
    assert (await Caller(small.url).encode(noise(50, 50, 4))).status == 200
    await asyncio.to_thread(small.until, small.is_empty)
    for sock in slow:
        sock.close()


async def test_one_who_sends_a_few_is_let_in_beside_a_crowd() -> None:
    with serving(*FLAGS, *KEYS, program=FAKE, variables={"CHAOS_PACK_MS": "200"}) as running:
        picture = noise(50, 50, 1)
        crowd = [asyncio.create_task(Caller(running.url, BULK).encode(marked(picture, i))) for i in range(60)]
        await asyncio.to_thread(running.until, lambda: running.metric("foveal_admission_rejections_total") > 0)
        single = Caller(running.url, SINGLE)
        assert {(await single.encode(marked(picture, 100 + i))).status for i in range(3)} == {200}
        assert {reply.status for reply in await asyncio.gather(*crowd)} == {200, 503}


async def test_a_drain_under_load_finishes_what_was_accepted() -> None:
    with serving(*FLAGS, program=FAKE, variables={"CHAOS_PACK_MS": "400"}) as running:
        picture, callers = noise(50, 50, 1), [Caller(running.url) for _ in range(24)]
        calls = [asyncio.create_task(c.encode(marked(picture, i))) for i, c in enumerate(callers)]
        await asyncio.to_thread(running.until, lambda: running.metric("foveal_inflight_items") > 8)
        running.process.send_signal(signal.SIGTERM)
        replies = await asyncio.gather(*calls)
        assert Counter(reply.status for reply in replies) == {200: 24}
        assert await asyncio.to_thread(running.process.wait, 20) == 0


async def test_a_second_signal_means_now() -> None:
    with serving(*FLAGS, program=FAKE, variables={"CHAOS_PACK_MS": "60000"}) as running:
        call = asyncio.create_task(Caller(running.url).encode(noise(50, 50, 1)))
        await asyncio.to_thread(running.until, lambda: running.metric("foveal_inflight_items") > 0)
        running.process.send_signal(signal.SIGTERM)
        assert (await Caller(running.url).get("/ready")).code == "draining"
        running.process.send_signal(signal.SIGTERM)
        assert (await call).code == "draining"
        assert await asyncio.to_thread(running.process.wait, 20) == 0


async def test_a_worker_that_hangs_in_its_start_says_where_and_is_started_again() -> None:
    flags = ("--prep-workers", "1", "--worker-start-seconds", "3")  # a busy machine needs one to come so far
    with serving(*flags, program=FAKE, variables={"CHAOS_HANG": "start"}, ready=False) as running:
        await asyncio.to_thread(running.until, lambda: running.info()["workers"][0]["restarts"] > 0)
        words = ("worker hangs", "most recent call first", "fake_worker.py")
        await asyncio.to_thread(running.until, lambda: all(word in "".join(running.lines) for word in words))


def test_workers_that_never_start_end_the_server_with_the_reason_as_its_last_line() -> None:
    flags = ("--prep-workers", "1", "--cpu-workers", "2", "--cpu-threads", "1")
    running = start(*flags, program=FAKE, variables={"CHAOS_FAIL": "start"})
    assert running.process.wait(60) == 1
    running.until(lambda: "cannot serve" in running.lines[-1])
    reason = r"no worker starts: .* 5 times .*cpu-0: exit code 1, .*cpu-1: exit code 1, "
    assert re.search(reason, running.lines[-1])
    assert "this worker fails at start" in "".join(running.lines)


def test_a_worker_that_once_was_ready_is_started_for_ever(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    with serving("--prep-workers", "1", program=FAKE, variables={"CHAOS_FAIL": str(broken)}) as running:
        broken.touch()
        os.kill(running.info()["workers"][0]["pid"], signal.SIGKILL)
        running.until(lambda: running.info()["workers"][0]["restarts"] > MAX_STARTS)
        assert httpx.get(running.url + "/ready", trust_env=False).status_code == 503
        broken.unlink()
        running.wait_ready()


async def test_full_memory_is_a_refusal_and_not_a_hang() -> None:
    flags = ("--max-inflight-bytes", "8MiB", "--max-body-bytes", "1MiB", "--max-image-tokens", "1024")
    small = ("--prep-workers", "1", "--cache-bytes", "0", *flags)
    with serving(*small, program=FAKE, variables={"CHAOS_PACK_MS": "20"}) as running:
        picture = noise(500, 500, 1)
        replies = await asyncio.gather(*(Caller(running.url).encode(marked(picture, i)) for i in range(60)))
        outcomes = Counter(reply.code or reply.status for reply in replies)
        assert set(outcomes) <= {200, "overloaded"} and outcomes[200] > 0, outcomes
        await asyncio.to_thread(running.until, running.is_empty)


async def test_a_prep_process_that_is_stopped_or_killed_costs_nobody_an_answer() -> None:
    flags = ("--prep-workers", "1", "--prep-timeout-seconds", "1")
    with serving(*flags, program=FAKE) as running:
        for signal_number in (signal.SIGKILL, signal.SIGSTOP):
            await asyncio.to_thread(running.until, lambda: running.info()["prep_workers"][0]["ready"])
            os.kill(running.info()["prep_workers"][0]["pid"], signal_number)
            calls = [Caller(running.url).encode(marked(noise(50, 50, signal_number), i)) for i in range(20)]
            assert Counter(reply.code or reply.status for reply in await asyncio.gather(*calls)) == {200: 20}
