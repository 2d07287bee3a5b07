"""The gateway looks at its LLM servers by itself: what is down, silent, another, or started without a tower."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from foveal.errors import InvalidRequest, Unavailable
from foveal.handover.identity import Expected
from foveal.handover.upstreams import MAX_AWAY_SECONDS, MAX_SILENT, Upstream, Upstreams
from foveal.handover.watch import PERIOD_SECONDS, Watch
from foveal.metrics import Metrics
from tests.llm import FakeLlm, Sent, Writer, fake_llm, listing, whole

EXPECTED = Expected("builtin:tiny", frozenset({"builtin-tiny"}), 64, 3)


@dataclass
class Watched:
    """A watch whose clock moves in its own sleeps alone."""

    upstreams: Upstreams
    watch: Watch
    metrics: Metrics
    pauses: list[float]

    @property
    def one(self) -> Upstream:
        return self.upstreams.all[0]

    @property
    def shown(self) -> dict[str, Any]:
        return self.upstreams.shown()[0]

    @property
    def gauge(self) -> float:
        return self.metrics.gateway_upstream_up.labels(self.one.name)._value.get()

    async def look(self, *headers: tuple[bytes, bytes], model: str | None = None) -> None:
        await self.watch.before_embeddings(self.one, headers, model)


def watched(*urls: str, key: str | None = None, expected: Expected | None = EXPECTED) -> Watched:
    metrics, pauses = Metrics(CollectorRegistry()), [0.0]
    upstreams = Upstreams(urls, 100, 1.0, metrics, lambda: sum(pauses))

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        await asyncio.sleep(0)

    return Watched(upstreams, Watch(upstreams, lambda: expected, key, sleep, lambda: 0.5), metrics, pauses)


@contextlib.asynccontextmanager
async def running(watch: Watch) -> AsyncIterator[None]:
    task = asyncio.create_task(watch.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait((task,))
        assert task.cancelled()


async def until(holds: Any) -> None:
    while not holds():
        await asyncio.sleep(0)


def lists(*entries: dict[str, Any]) -> Any:
    async def answer(sent: Sent, writer: Writer) -> None:
        writer.write(listing(*entries))

    return answer


def answers(status: int, body: bytes = b"{}") -> Any:
    async def answer(sent: Sent, writer: Writer) -> None:
        writer.write(whole(body, status))

    return answer


async def test_a_dead_server_is_known_without_traffic_and_seen_when_it_is_back() -> None:
    async with fake_llm() as llm:
        await llm.stop()
        it = watched(llm.url)
        async with running(it.watch):
            await until(lambda: not it.shown["up"] and len(it.pauses) > 12)
            assert it.gauge == 0 and it.pauses[1] < PERIOD_SECONDS and max(it.pauses) <= MAX_AWAY_SECONDS
            await llm.start()
            await until(lambda: it.shown["up"])
            assert it.gauge == 1


async def test_a_server_that_is_well_is_asked_once_a_period_and_no_two_gateways_in_step() -> None:
    async with fake_llm() as llm:
        it = watched(llm.url)
        async with running(it.watch):
            await until(lambda: len(it.pauses) > 4)
        assert set(it.pauses[1:]) == {PERIOD_SECONDS} and len(llm.looks) <= len(it.pauses)
        assert {sent.line for sent in llm.looks} == {"GET /v1/models HTTP/1.1"}
        pauses = {Watch(it.upstreams, lambda: None, chance=lambda c=c: c).pause(it.one) for c in (0.0, 0.4, 0.99)}
        assert len(pauses) == 3 and all(0.8 * PERIOD_SECONDS <= p <= 1.2 * PERIOD_SECONDS for p in pauses)


async def test_nothing_is_left_open_when_the_watch_ends_in_the_middle_of_a_look() -> None:
    begun = asyncio.Event()

    async def never(sent: Sent, writer: Writer) -> None:
        begun.set()
        await sent.gone.wait()

    async with fake_llm() as llm:
        llm.look = never
        async with running(watched(llm.url).watch):
            await begun.wait()
        await until(lambda: not llm.num_open)


@pytest.mark.parametrize(
    "answer", [answers(500), answers(503), answers(200, b"x" * (2 << 20))], ids=["500", "503", "endless"]
)
async def test_one_that_connects_and_does_not_answer_is_down_after_two_looks_and_still_asked(answer: Any) -> None:
    async with fake_llm() as llm:
        llm.look = answer
        it = watched(llm.url)
        await it.look()
        assert it.shown["up"] and it.one.is_checked and "is not known" in it.shown["problem"]
        async with running(it.watch):
            await until(lambda: it.one.num_silent >= MAX_SILENT)
        assert not it.shown["up"] and it.gauge == 0
        assert it.upstreams.take(has_embeddings=True) is it.one
        it.upstreams.reached(it.one)
        assert it.shown["up"] and it.gauge == 1


async def test_another_model_gets_no_embeddings_until_it_is_the_right_one() -> None:
    async with fake_llm() as llm:
        llm.look = lists({"id": "Qwen/Qwen3-VL-8B-Instruct"})
        it = watched(llm.url)
        await it.look()
        assert it.shown["up"] and not it.shown["takes_embeddings"] and "Qwen3-VL-8B" in it.shown["problem"]
        assert it.upstreams.take(has_embeddings=True) is None and it.upstreams.take() is it.one
        with pytest.raises(Unavailable, match="--llm-model") as caught:
            it.upstreams.refuse_unless_usable()
        assert not caught.value.retryable
        await llm.stop()
        async with running(it.watch):
            await until(lambda: not it.shown["up"])
            llm.look = lists({"id": "builtin:tiny"})
            await llm.start()
            await until(lambda: it.shown["models"] == ["builtin:tiny"])
        it.upstreams.refuse_unless_usable()


async def test_one_that_changes_its_model_without_being_missed_is_found_out_too() -> None:
    async with fake_llm() as llm:
        it = watched(llm.url)
        async with running(it.watch):
            await until(lambda: it.one.is_checked)
            llm.look = lists({"id": "another"})
            await until(lambda: it.one.refusal)


async def test_of_several_the_right_ones_are_asked() -> None:
    async with fake_llm() as right, fake_llm() as wrong:
        wrong.look = lists({"id": "another"})
        it = watched(wrong.url, right.url)
        for upstream in it.upstreams.all:
            await it.watch.before_embeddings(upstream, ())
        taken = [it.upstreams.take(has_embeddings=has) for has in (True, False) for _ in range(4)]
        assert {one.name for one in taken if one} == {f"127.0.0.1:{right.port}"}
        it.upstreams.refuse_unless_usable()


@pytest.mark.parametrize(
    ("answer", "remark"),
    [
        (answers(404), "is answered 404"),
        (answers(200, b"hello"), "cannot be read"),
        (answers(200, b'{"models": []}'), "cannot be read"),
        (answers(200, b'{"data": [{"id": 7}]}'), "cannot be read"),
        (answers(200, b'{"data": [{"id": "\xff"}]}'), "cannot be read"),
        (answers(200, b"[" * 100_000), "cannot be read"),
    ],
    ids=["no route", "no JSON", "no list", "no name", "no UTF-8", "too deep"],
)
async def test_one_that_does_not_say_what_it_serves_is_believed_with_a_remark(answer: Any, remark: str) -> None:
    async with fake_llm() as llm:
        llm.look = answer
        it = watched(llm.url)
        await it.look()
        assert it.shown["takes_embeddings"] and remark in it.shown["problem"] and it.one.is_checked


async def test_a_key_is_sent_and_without_one_the_callers_own_shows_the_models() -> None:
    async def wants_key(sent: Sent, writer: Writer) -> None:
        known = sent.headers.get("authorization") in ("Bearer ours", "Bearer theirs")
        writer.write(listing({"id": "another"}) if known else whole(b"{}", 401))

    async with fake_llm() as llm:
        llm.look = wants_key
        ours = watched(llm.url, key="ours")
        await ours.look((b"Authorization", b"Bearer nobody"))
        assert ours.one.refusal
        it = watched(llm.url)
        await it.look((b"Authorization", b"Bearer nobody"))
        assert not it.one.is_checked and "--llm-api-key" in it.shown["problem"]
        await it.look((b"Accept", b"*/*"), (b"authorization", b"Bearer theirs"))
        assert it.one.refusal
        async with running(it.watch):  # without a key it learns nothing, and forgets nothing
            await until(lambda: len(it.pauses) > 2)
        assert it.one.refusal and it.shown["up"]


async def test_a_key_that_shows_nothing_is_tried_once() -> None:
    async with fake_llm() as llm:
        llm.look = answers(401)
        it = watched(llm.url)
        for _ in range(3):
            await it.look((b"Authorization", b"Bearer nobody"))
        assert len(llm.looks) == 1 and not it.one.is_checked
        llm.look = lists({"id": "another"})
        await it.look((b"Authorization", b"Bearer somebody"))
        assert it.one.refusal


@pytest.mark.parametrize("answer", [answers(404), answers(503), answers(200, b"hello")], ids=["404", "503", "no JSON"])
async def test_what_was_found_out_is_not_forgotten_when_it_falls_silent(answer: Any) -> None:
    async with fake_llm() as llm:
        llm.look = lists({"id": "another"})
        it = watched(llm.url)
        await it.look()
        llm.look = answer
        async with running(it.watch):
            await until(lambda: len(it.pauses) > 2)
        assert it.one.refusal


async def test_many_callers_look_once() -> None:
    async with fake_llm() as llm:
        it = watched(llm.url)
        await asyncio.gather(*(it.look() for _ in range(20)))
        assert len(llm.looks) == 1


async def test_pictures_for_a_server_that_is_known_do_not_wait_for_a_look() -> None:
    async def never(sent: Sent, writer: Writer) -> None:
        await sent.gone.wait()

    async with fake_llm() as llm:
        it = watched(llm.url)
        await it.look()
        llm.look = never
        async with running(it.watch):
            await until(lambda: len(llm.looks) == 2)
            await it.look()
            assert llm.num_open == 1  # the look goes on


async def test_a_model_that_is_listed_beside_the_right_one_takes_no_pictures() -> None:
    async with fake_llm() as llm:
        llm.look = lists({"id": "builtin:tiny"}, {"id": "text-only"})
        it = watched(llm.url)
        for model in ("builtin:tiny", "unknown", None):
            await it.look(model=model)
        with pytest.raises(InvalidRequest, match="text-only"):
            await it.look(model="text-only")


async def test_before_the_own_model_is_known_only_what_can_be_reached_is_looked_at() -> None:
    async with fake_llm() as llm:
        llm.look = lists({"id": "another"})
        it = watched(llm.url, expected=None)
        await it.look()
        assert it.shown["up"] and not it.one.is_checked and not it.one.refusal


def as_vllm(limit: int, version: str) -> Any:
    """As vLLM 0.32 answers, started with so many images a prompt."""

    async def answer(sent: Sent, writer: Writer) -> None:
        path = sent.line.split()[1]
        if path == "/v1/models":
            writer.write(listing({"id": "tiny", "root": "builtin:tiny", "owned_by": "vllm", "parent": None}))
        elif path == "/version":
            writer.write(whole(json.dumps({"version": version}).encode()))
        else:
            assert sent.json["model"] == "tiny" and sent.json["messages"][0]["content"][0]["type"] == "image_url"
            text = "At most 0 image(s) may be provided in one prompt." if limit == 0 else "Failed to load image"
            writer.write(whole(json.dumps({"error": {"message": text, "code": 400}}).encode(), 400))

    return answer


@pytest.mark.parametrize(
    ("limit", "version", "levels", "takes", "has_problem"),
    [
        (0, "0.32.0", 3, False, True),
        (0, "0.26.0", 3, False, True),
        (0, "what?", 3, False, True),
        (0, "0.34.0rc1", 3, True, True),
        (0, "0.32.0", 1, True, False),
        (8, "0.32.0", 3, True, False),
    ],
)
async def test_a_vllm_without_a_tower_that_forgets_deepstack_gets_no_embeddings(
    limit: int, version: str, levels: int, takes: bool, has_problem: bool
) -> None:
    async with fake_llm() as llm:
        llm.look = as_vllm(limit, version)
        it = watched(llm.url, expected=Expected("builtin:tiny", EXPECTED.names, 64, levels))
        await it.look()
        assert it.shown["takes_embeddings"] == takes
        assert ("--limit-mm-per-prompt" in (it.shown["problem"] or "")) == has_problem
        async with running(it.watch):  # it is asked so once, not every ten seconds
            await until(lambda: len(it.pauses) > 2)
        assert it.shown["takes_embeddings"] == takes
        assert sum("chat" in sent.line for sent in llm.looks) == (levels > 1)


async def test_other_servers_than_vllm_are_not_asked_about_vllms_flags() -> None:
    async with fake_llm() as llm:
        assert isinstance(llm, FakeLlm)
        await watched(llm.url).look()
        assert len(llm.looks) == 1
