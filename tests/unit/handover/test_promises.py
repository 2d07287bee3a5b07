"""Promises stay within their bytes, and what was promised stays until it is fetched or its time is over."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from prometheus_client import CollectorRegistry

from foveal.engine.cache import EncoderCache
from foveal.engine.memory import Allocator
from foveal.errors import FovealError, Overloaded, TooLarge
from foveal.handover.promises import Promises
from foveal.ipc.arena import Arena
from foveal.metrics import Metrics
from tests.unit.handover.holding import FakeClock, encoded, key_of

MAX_BYTES, SECONDS = 1000, 60.0


class Kept(RuleBasedStateMachine):
    """Against a plain dictionary of what must be there: name → (bytes, end)."""

    def __init__(self) -> None:
        super().__init__()
        self.clock, self.arena, self.metrics = FakeClock(), Arena("test", 1 << 16), Metrics(CollectorRegistry())
        self.promises = Promises(MAX_BYTES, SECONDS, self.metrics, self.clock)
        self.wanted: dict[str, tuple[int, float]] = {}

    def alive(self) -> dict[str, tuple[int, float]]:
        return {name: (size, end) for name, (size, end) in self.wanted.items() if end > self.clock.now}

    @rule(names=st.lists(st.integers(0, 6), min_size=1, max_size=4), size=st.sampled_from([8, 64, 200, 400, 1008]))
    def promise(self, names: list[int], size: int) -> None:
        self.wanted = self.alive()
        new = {key_of(name): (size, self.clock.now + SECONDS) for name in names}
        fits = sum(size for size, _ in {**self.wanted, **new}.values()) <= MAX_BYTES
        try:
            self.promises.promise([encoded(self.arena, name, size) for name in names])
        except FovealError:
            assert not fits
        else:
            assert fits
            self.wanted |= new

    @rule(name=st.integers(0, 6), whole=st.booleans())
    def fetch(self, name: int, whole: bool) -> None:
        found = self.promises.get(key_of(name))
        assert (found is not None) == (key_of(name) in self.alive())
        if found is not None and whole:
            self.promises.fetched(found)
            del self.wanted[key_of(name)]

    @rule(seconds=st.sampled_from([0.5, 20.0, 59.5, 60.0]))
    def wait(self, seconds: float) -> None:
        self.clock.now += seconds

    @rule()
    def expire(self) -> None:
        before = len(self.promises)
        assert self.promises.expire() == (before > len(self.alive()))

    @invariant()
    def bounded_and_all_there(self) -> None:
        assert self.promises.num_bytes <= MAX_BYTES
        for name, (size, _) in self.alive().items():
            found = self.promises.get(name)
            assert found is not None and found.encoded.num_bytes == size

    @invariant()
    def counted(self) -> None:
        self.promises.expire()
        assert self.promises.num_bytes == sum(size for size, _ in self.alive().values())
        assert self.metrics.handover_bytes._value.get() == self.promises.num_bytes
        assert self.metrics.handover_entries._value.get() == len(self.alive())
        # rounded up to 64 bytes, and nothing of what is over is kept in shared memory
        assert self.arena.used == sum(-(-size // 64) * 64 for size, _ in self.alive().values())


Kept.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
test_whatever_happens_promises_are_kept_and_bounded = Kept.TestCase


def make(clock: FakeClock) -> tuple[Promises, Arena, Metrics]:
    metrics = Metrics(CollectorRegistry())
    return Promises(MAX_BYTES, SECONDS, metrics, clock), Arena("test", 1 << 16), metrics


def count(metrics: Metrics, outcome: str) -> float:
    return metrics.handover.labels(outcome)._value.get()


def test_a_fetch_that_began_before_a_renewal_does_not_end_it() -> None:
    promises, arena, _ = make(FakeClock())
    promises.promise([encoded(arena, "a")])
    begun = promises.get(key_of("a"))
    promises.promise([encoded(arena, "a")])
    assert begun is not None
    promises.fetched(begun)
    assert promises.get(key_of("a")) is not None


def test_renewing_counts_the_time_from_now() -> None:
    promises, arena, _ = make(clock := FakeClock())
    for name in "ab":
        promises.promise([encoded(arena, name)])
    clock.now += 40
    promises.promise([encoded(arena, "a")])
    clock.now += 40
    assert promises.get(key_of("a")) is not None and promises.get(key_of("b")) is None


def test_a_refusal_is_counted_and_says_when_there_is_room_again() -> None:
    promises, arena, metrics = make(clock := FakeClock())
    promises.promise([encoded(arena, "a", 904)])
    clock.now += 23
    with pytest.raises(Overloaded, match="--handover-bytes") as refusal:
        promises.promise([encoded(arena, "b"), encoded(arena, "c")])
    assert refusal.value.retry_after == pytest.approx(37)
    assert (count(metrics, "promised"), count(metrics, "refused")) == (1, 2)
    assert metrics.admission_rejections.labels("handover")._value.get() == 1
    clock.now += 37
    promises.promise([encoded(arena, "b"), encoded(arena, "c")])
    assert count(metrics, "expired") == 1


def test_what_could_never_fit_is_not_worth_another_try() -> None:
    promises, arena, _ = make(FakeClock())
    with pytest.raises(TooLarge, match="--handover-bytes"):
        promises.promise([encoded(arena, name, 504) for name in "ab"])


def test_an_embedding_may_be_kept_under_another_name() -> None:
    promises, arena, _ = make(FakeClock())
    promises.promise([encoded(arena, "a")], [key_of("alias")])
    assert promises.get(key_of("a")) is None
    found = promises.get(key_of("alias"))
    assert found is not None and found.encoded.key == key_of("a")


async def test_what_is_overdue_makes_room_before_the_encoder_cache_must() -> None:
    clock, metrics, arena = FakeClock(), Metrics(CollectorRegistry()), Arena("test", 1024)
    promises, cache = Promises(MAX_BYTES, SECONDS, metrics, clock), EncoderCache(MAX_BYTES, metrics)
    allocator = Allocator(arena, cache.evict)
    allocator.ask_first(promises.expire)
    promises.promise([encoded(arena, "promised", 512)])
    cache.put(key_of("cached"), encoded(arena, "cached", 512))
    clock.now += SECONDS
    await allocator.block(512)
    assert len(promises) == 0 and cache.shown()["entries"] == 1
    await allocator.block(1024)
    assert cache.shown()["entries"] == 0
