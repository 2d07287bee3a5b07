"""The generator does not wait for answers, counts from when a request was due, and survives every kind of answer."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter

import numpy as np
import pytest

from foveal.bench.serve.generator import STAGES, Samples, Shares, fire
from foveal.bench.serve.payloads import Target
from foveal.bench.serve.schedule import Recipe, Schedule, draw
from tests.unit.bench.scripted import Answerer, answer, scripted

COUNT = 12


def schedule(count: int = COUNT) -> Schedule:
    return draw(Recipe("constant", num_pictures=2), rate=1000, seconds=count / 1000, step=0, first_copy=0)


def fired(answerer: Answerer, max_connections: int = 100, start: float | None = None) -> Samples:
    with scripted(answerer) as url:
        shares = Shares(Target(url, timeout_seconds=20), [b"\xff\xd8 one", b"\xff\xd8 two"], max_connections)
        return fire(shares, schedule(), time.monotonic() if start is None else start)


def codes(samples: Samples) -> Counter[str]:
    return Counter(samples.code_names[code] for code in samples.codes)


def test_requests_are_sent_while_none_is_answered() -> None:
    everyone = asyncio.Barrier(COUNT)

    async def answerer(path: str, body: bytes) -> bytes:
        await everyone.wait()
        return answer()

    assert codes(fired(answerer)) == {"ok": COUNT}


def test_latency_counts_from_when_a_request_was_due_and_not_from_when_it_was_sent() -> None:
    async def answerer(path: str, body: bytes) -> bytes:
        return answer()

    samples = fired(answerer, start=time.monotonic() - 100)
    assert samples.latency.min() > 99 and samples.lag.min() > 99
    assert (samples.latency >= samples.lag).all()


def test_one_connection_serves_all_in_turn_and_the_waiting_is_told() -> None:
    async def answerer(path: str, body: bytes) -> bytes:
        return answer()

    samples = fired(answerer, max_connections=1, start=time.monotonic() - 1)
    assert codes(samples) == {"ok": COUNT}
    assert samples.num_waits == COUNT - 1


def test_every_request_carries_other_bytes() -> None:
    seen: list[bytes] = []

    async def answerer(path: str, body: bytes) -> bytes:
        seen.append(body)
        return answer()

    fired(answerer)
    assert len(set(seen)) == COUNT


def test_stages_and_bytes_of_an_answer_are_kept() -> None:
    async def answerer(path: str, body: bytes) -> bytes:
        return answer(b"x" * 1000, 200, "Server-Timing: fetch;dur=1.5, encode;dur=20.25, total;dur=30")

    samples = fired(answerer)
    assert set(samples.num_bytes) == {1000}
    told = dict(zip(STAGES, samples.stages[0] * 1000, strict=True))
    assert told["fetch"] == pytest.approx(1.5) and told["encode"] == pytest.approx(20.25)
    assert told["queue"] == 0 and told["total"] == pytest.approx(30)


def test_failures_are_counted_by_the_codes_that_the_server_gave() -> None:
    turns = itertools.cycle(
        (
            answer(),
            answer(b'{"error": {"code": "overloaded"}}', 503),
            answer(b"<html>", 502),
            answer(b"", 200, "Connection: close"),
            b"",
            b"this is not HTTP\r\n\r\n",
        )
    )

    async def answerer(path: str, body: bytes) -> bytes:
        return next(turns)

    found = codes(fired(answerer))
    assert found == {"ok": 4, "overloaded": 2, "status_502": 2, "connection_lost": 2, "not_http": 2}


def test_a_server_that_is_not_there_is_a_code_too() -> None:
    with scripted(lambda path, body: asyncio.sleep(0, b"")) as url:
        pass
    samples = fire(Shares(Target(url), [b"x"] * 2, 10), schedule(), time.monotonic())
    assert codes(samples) == {"no_connection": COUNT}


def test_samples_of_several_processes_join_by_the_names_of_their_codes() -> None:
    def part(names: tuple[str, ...], cpu: float) -> Samples:
        rows = len(names)
        zeros = np.zeros(rows, np.float32)
        codes, stages = np.arange(rows, dtype=np.int16), np.zeros((rows, len(STAGES)), np.float32)
        return Samples(np.zeros(rows), zeros, zeros, codes, codes.astype(np.int64), stages, names, cpu, 1.0, 2)

    joined = Samples.joined([part(("ok", "timeout"), 0.2), part(("ok", "overloaded", "timeout"), 0.9)])
    assert codes(joined) == {"ok": 2, "timeout": 2, "overloaded": 1}
    assert (joined.cpu_seconds, joined.num_waits) == (0.9, 4)
