"""The gate: refuses what is too much, waits for its own, gives everything back."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from prometheus_client import CollectorRegistry

from foveal.engine.admission import Gate
from foveal.engine.speed import MAX_CALLERS, Speed
from foveal.errors import Draining, Overloaded, TooLarge
from foveal.ipc.arena import Arena
from foveal.metrics import Metrics


@pytest.fixture
async def gate() -> Gate:
    return Gate(max_tokens=100, max_bytes=1000, metrics=Metrics(CollectorRegistry()))


async def test_the_last_straw_is_refused_with_a_time_to_come_back(gate: Gate) -> None:
    with gate.visit() as first, gate.visit() as second:
        with await first.admit(90, 10, 10), pytest.raises(Overloaded) as refusal:
            await second.admit(20, 10, 10)
        assert refusal.value.retry_after is not None and 1 <= refusal.value.retry_after <= 60
        with await second.admit(20, 10, 10):
            pass


async def test_a_request_waits_for_its_own_images(gate: Gate) -> None:
    with gate.visit() as visit:
        place = await visit.admit(90, 10, 10)
        waiting = asyncio.create_task(visit.admit(90, 10, 10))
        await asyncio.sleep(0)
        assert not waiting.done()
        place.leave()
        (await waiting).leave()


async def test_what_can_never_fit_is_too_large_rather_than_overloaded(gate: Gate) -> None:
    with gate.visit() as visit:
        with pytest.raises(TooLarge, match="--max-inflight-bytes"):
            await visit.admit(1, 600, 600)
        with pytest.raises(TooLarge), await visit.admit(1, 0, 700):
            await visit.admit(1, 0, 400)


async def test_bodies_count_as_they_arrive_and_come_back(gate: Gate) -> None:
    with gate.visit() as visit:
        visit.hold_body(600)
        with pytest.raises(Overloaded), gate.visit() as other:
            other.hold_body(600)
    with gate.visit() as visit:
        visit.hold_body(1000)
    assert gate.fits(100, 1000)


async def test_the_last_eighth_is_kept_for_callers_who_hold_little(gate: Gate) -> None:
    with gate.visit("bulk") as bulk, gate.visit("bulk") as more, gate.visit("single") as single:
        with await bulk.admit(80, 10, 10):
            with pytest.raises(Overloaded):
                await more.admit(15, 10, 10)
            with await single.admit(15, 10, 10):
                pass
        with await bulk.admit(100, 10, 10):  # alone, the largest image is let in
            pass
    assert not gate._callers


async def test_a_full_gate_refuses_before_any_work_but_not_a_request_that_waits_for_its_own(gate: Gate) -> None:
    with gate.visit("a") as first, gate.visit("b") as second:
        with await first.admit(100, 10, 10):
            assert first.expect()
            assert not second.expect()
        assert second.expect()


async def test_as_many_are_let_in_to_be_read_as_will_fit_if_they_are_like_those_before() -> None:
    gate = Gate(max_tokens=32_000, max_bytes=1000, metrics=Metrics(CollectorRegistry()))
    assert gate.typical.expected("0") == 1
    for i in range(42):
        gate.typical.note(str(i), 800)
    with contextlib.ExitStack() as stack:
        visits = [stack.enter_context(gate.visit(str(i))) for i in range(42)]
        assert [visit.expect() for visit in visits] == [True] * 40 + [False] * 2
        assert visits[0].expect(), "what waits already is not refused"
        visits[0].expect_no_more()
        assert visits[40].expect()
        with await visits[1].admit(1, 10, 10), await visits[2].admit(1, 10, 10):
            assert visits[41].expect(), "an image counts with its own tokens as soon as they are known"
    assert gate.fits(32_000, 1000)


async def test_room_for_less_than_an_image_is_no_room(gate: Gate) -> None:
    with gate.visit("a") as first, gate.visit("a") as second, gate.visit("b") as smaller:
        with await first.admit(60, 10, 10):
            assert not second.may_expect() and not second.expect()
            gate.typical.note("b", 20)
            assert smaller.expect(), "of another size, as far as is known"
        assert second.expect()


@pytest.mark.parametrize("held", [0, 28_000], ids=["idle", "large ones wait"])
@pytest.mark.parametrize("known", [True, False], ids=["known", "unknown"])
async def test_anothers_large_images_keep_no_small_ones_from_being_read(held: int, known: bool) -> None:
    gate = Gate(max_tokens=32_000, max_bytes=1000, metrics=Metrics(CollectorRegistry()))
    if known:
        gate.typical.note("small", 10)
    gate.typical.note("large", 16_000)
    with contextlib.ExitStack() as stack:
        stack.enter_context(await stack.enter_context(gate.visit("large")).admit(held, 10, 10))
        visits = [stack.enter_context(gate.visit("small")) for _ in range(24)]
        assert all(visit.expect() for visit in visits)


async def test_after_its_own_large_images_a_caller_may_send_small_ones_to_an_idle_server() -> None:
    gate = Gate(max_tokens=32_000, max_bytes=1000, metrics=Metrics(CollectorRegistry()))
    gate.typical.note("same", 16_000)
    with contextlib.ExitStack() as stack:
        visits = [stack.enter_context(gate.visit("same")) for _ in range(28)]
        assert all(visit.expect() for visit in visits)


async def test_of_as_many_callers_as_one_likes_a_bounded_number_is_remembered(gate: Gate) -> None:
    for i in range(2 * MAX_CALLERS):
        gate.typical.note(str(i), 3)
    assert len(gate.typical._callers) == MAX_CALLERS and gate.typical.expected(str(2 * MAX_CALLERS - 1)) == 3


async def test_what_an_images_own_request_expects_does_not_refuse_it(gate: Gate) -> None:
    gate.typical.note("a", 80)
    with gate.visit("a") as visit:
        assert visit.expect()
        with await visit.admit(100, 10, 10):
            pass


async def test_admitted_tokens_are_charged(gate: Gate) -> None:
    charged: list[int] = []
    with gate.visit("key-1", charge=charged.append) as visit, await visit.admit(80, 10, 10):
        assert charged == [80]


async def test_leaving_twice_counts_once(gate: Gate) -> None:
    with gate.visit() as visit:
        place = await visit.admit(10, 10, 10)
        place.leave()
        place.leave()
        assert gate.fits(100, 1000) and not gate.fits(101, 0)


async def test_draining_refuses_new_requests_and_waits_for_open_ones(gate: Gate) -> None:
    with gate.visit():
        gate.is_draining = True
        with pytest.raises(Draining):
            gate.visit()
        waiting = asyncio.create_task(gate.until_empty())
        await asyncio.sleep(0)
        assert not waiting.done()
    await waiting


def test_speed_forgets() -> None:
    now = [0.0]
    speed = Speed(lambda: now[0])
    assert speed.seconds_for(100) == 1.0
    for _ in range(100):
        now[0] += 0.1
        speed.count(10)
    assert 0.5 < speed.seconds_for(100) < 2.0


async def test_one_embedding_in_many_answers_counts_once_until_the_last_is_sent(gate: Gate) -> None:
    block = Arena("test", 4096).allocate(600)
    with gate.visit() as first:
        first.hold_answer(block)
        with gate.visit() as second:
            second.hold_answer(block)
            second.hold_answer(block)
            assert gate.fits(0, 400) and not gate.fits(0, 401)
        assert not gate.fits(0, 401)
    assert gate.fits(0, 1000)


async def test_a_body_that_leaves_no_room_for_its_images_is_too_large(gate: Gate) -> None:
    with gate.visit() as visit:
        visit.hold_body(700)
        with pytest.raises(TooLarge):
            await visit.admit(1, 200, 200)
