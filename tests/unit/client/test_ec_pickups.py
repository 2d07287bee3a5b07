"""Which request gets which embedding, and when: the connector's decisions, with fetches that end when told."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from foveal_client._ec.fetch import Need, PickupFailed
from foveal_client._ec.memory import MemoryFile
from foveal_client._ec.pickups import Pickups


def need_of(number: int, height: int = 4) -> Need:
    return Need(f"{number:064x}", (1, height, 4), 8, 2)


A, B, C = need_of(1), need_of(2), need_of(3)
SIZE = A.max_bytes


class Fetches:
    """Starts nothing; settles when told."""

    def __init__(self) -> None:
        self.started: list[tuple[Need, Future[MemoryFile]]] = []

    def __call__(self, need: Need) -> Future[MemoryFile]:
        future: Future[MemoryFile] = Future()
        self.started.append((need, future))
        return future

    def of(self, need: Need) -> Future[MemoryFile]:
        return next(future for found, future in reversed(self.started) if found == need)

    def come(self, need: Need) -> MemoryFile:
        file = MemoryFile(1000)
        file.write(b"x" * 10)
        self.of(need).set_result(file)
        return file

    def never(self, need: Need) -> None:
        self.of(need).set_exception(PickupFailed("it did not come"))


@pytest.fixture
def fetches() -> Fetches:
    return Fetches()


@pytest.fixture
def pickups(fetches: Fetches) -> Pickups:
    return Pickups(fetches, 3 * SIZE)


def is_closed(file: MemoryFile) -> bool:
    return file.path.endswith("/-1")


def test_a_request_waits_until_all_it_needs_is_here(fetches: Fetches, pickups: Pickups) -> None:
    assert not pickups.want("r", [A, B])
    fetches.come(A)
    assert not pickups.want("r", [A, B])
    fetches.come(B)
    assert pickups.want("r", [A, B])
    assert [need for need, _ in fetches.started] == [A, B] or [need for need, _ in fetches.started] == [B, A]


def test_requests_that_need_the_same_share_one_fetch(fetches: Fetches, pickups: Pickups) -> None:
    pickups.want("r", [A, A])
    pickups.want("s", [A])
    fetches.come(A)
    assert pickups.want("r", [A, A])
    assert pickups.want("s", [A])
    assert len(fetches.started) == 1


def test_one_that_never_comes_fails_those_who_need_it_and_nobody_else(fetches: Fetches, pickups: Pickups) -> None:
    for request_id, needs in (("r", [A, B]), ("s", [A]), ("t", [B])):
        pickups.want(request_id, needs)
    fetches.come(B)
    fetches.never(A)
    assert pickups.take_failed() == {"r", "s"}
    assert pickups.take_failed() == set()
    assert not pickups.want("r", [A, B])
    assert pickups.want("t", [B])


def test_a_later_request_tries_again_what_has_failed(fetches: Fetches, pickups: Pickups) -> None:
    pickups.want("r", [A])
    fetches.never(A)
    pickups.take_failed()
    pickups.finish("r")
    assert not pickups.want("s", [A])
    fetches.come(A)
    assert pickups.want("s", [A])


def test_an_aborted_request_stops_what_only_it_waited_for(fetches: Fetches, pickups: Pickups) -> None:
    pickups.want("r", [A, B])
    pickups.want("s", [B])
    pickups.finish("r")
    assert fetches.of(A).cancelled()
    assert not fetches.of(B).cancelled()
    assert pickups.num_bytes == SIZE


def test_a_fetch_that_ends_after_its_request_gives_its_memory_back(pickups: Pickups, fetches: Fetches) -> None:
    pickups.want("r", [A])
    fetches.of(A).set_running_or_notify_cancel()  # too late to cancel
    pickups.finish("r")
    assert is_closed(fetches.come(A))


def test_what_was_used_stays_while_there_is_room_and_goes_when_there_is_none(
    fetches: Fetches, pickups: Pickups
) -> None:
    pickups.want("r", [A])
    file = fetches.come(A)
    pickups.release("r", A)
    assert pickups.want("s", [A])
    pickups.release("s", A)
    assert not pickups.want("t", [B, C, need_of(4)])
    assert is_closed(file)


def test_a_request_that_does_not_fit_beside_others_holds_nothing_and_comes_later(
    fetches: Fetches, pickups: Pickups
) -> None:
    pickups.want("r", [A, B])
    assert not pickups.want("s", [B, C, need_of(4)])
    assert len(fetches.started) == 2
    pickups.finish("r")
    assert not pickups.want("s", [B, C, need_of(4)])
    assert len(fetches.started) == 5


def test_a_request_that_can_never_fit_fails_alone(pickups: Pickups) -> None:
    pickups.want("r", [need_of(number) for number in range(4)])
    assert pickups.take_failed() == {"r"}


def test_memory_is_kept_until_the_workers_have_loaded_it(fetches: Fetches, pickups: Pickups) -> None:
    pickups.want("r", [A])
    file = fetches.come(A)
    assert pickups.want("r", [A])
    assert pickups.has(A)
    pickups.load("r", A)
    assert pickups.take_loads() == [(A.key, file.path)]
    assert pickups.take_loads() == []
    pickups.finish("r")
    pickups.want("s", [B, C, need_of(4)])
    assert not is_closed(file)
    pickups.loaded([A.key])
    pickups.want("s", [B, C, need_of(4)])
    assert is_closed(file)


def test_the_same_key_with_another_grid_is_another_pick_up(fetches: Fetches, pickups: Pickups) -> None:
    other = need_of(1, height=8)
    pickups.want("r", [A])
    pickups.want("s", [other])
    fetches.come(A)
    fetches.never(other)
    assert pickups.take_failed() == {"s"}
    assert pickups.want("r", [A])
    assert not pickups.has(other)


def test_closing_stops_and_frees_everything(fetches: Fetches, pickups: Pickups) -> None:
    pickups.want("r", [A, B])
    file = fetches.come(A)
    pickups.close()
    assert is_closed(file)
    assert fetches.of(B).cancelled()


class AnyOrder(RuleBasedStateMachine):
    """Requests, arrivals and ends in any order: bounded memory, nothing shared that is not held, nothing forgotten."""

    def __init__(self) -> None:
        super().__init__()
        self.fetches = Fetches()
        self.pickups = Pickups(self.fetches, 3 * SIZE)
        self.live: dict[str, list[Need]] = {}
        self.count = 0

    def open_fetches(self) -> list[Future[MemoryFile]]:
        return [future for _, future in self.fetches.started if not future.done()]

    @rule(numbers=st.lists(st.integers(1, 5), min_size=1, max_size=4))
    def arrive(self, numbers: list[int]) -> None:
        self.count += 1
        self.live[f"r{self.count}"] = [need_of(number) for number in numbers]

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def step(self, data: Any) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.live)))
        needs = self.live[request_id]
        if self.pickups.want(request_id, needs):
            assert all(self.pickups.has(need) for need in needs)
            for need in set(needs):
                self.pickups.load(request_id, need)
            paths = self.pickups.take_loads()
            assert not any(path.endswith("/-1") for _, path in paths)
            self.pickups.loaded([key for key, _ in paths])
            for need in needs:
                self.pickups.release(request_id, need)

    @precondition(lambda self: self.open_fetches())
    @rule(data=st.data(), comes=st.booleans())
    def settle(self, data: Any, comes: bool) -> None:
        future = data.draw(st.sampled_from(range(len(self.open_fetches()))))
        if comes:
            file = MemoryFile(1000)
            file.write(b"x")
            self.open_fetches()[future].set_result(file)
        else:
            self.open_fetches()[future].set_exception(PickupFailed("it did not come"))

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def end(self, data: Any) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.live)))
        del self.live[request_id]
        self.pickups.finish(request_id)

    @rule()
    def fail(self) -> None:
        for request_id in self.pickups.take_failed():
            assert request_id in self.live
            del self.live[request_id]
            self.pickups.finish(request_id)

    @invariant()
    def memory_is_bounded(self) -> None:
        assert self.pickups.num_bytes <= 3 * SIZE

    def teardown(self) -> None:
        """Whatever happened, the last request of all gets what it needs once fetches succeed."""
        for request_id in list(self.live):
            self.pickups.finish(request_id)
        self.pickups.want("last", [A])
        if not self.fetches.of(A).done():
            self.fetches.come(A)
        assert self.pickups.want("last", [A])
        self.pickups.close()


AnyOrder.TestCase.settings = settings(max_examples=60, deadline=None, stateful_step_count=30)
TestAnyOrder = AnyOrder.TestCase
