"""The loop's lateness: a standstill weighs as long as it lasted."""

from __future__ import annotations

import asyncio

import pytest
from prometheus_client import CollectorRegistry

from foveal.api.lag import MAX_MISSED, PROBE_SECONDS, latenesses, watch_lag
from foveal.metrics import Metrics


def test_a_probe_in_time_is_one_observation() -> None:
    assert latenesses(0.0) == [0.0]
    assert latenesses(-0.001) == [0.0]  # timers count in whole milliseconds
    assert latenesses(PROBE_SECONDS / 2) == [PROBE_SECONDS / 2]


def test_a_standstill_counts_for_every_probe_that_it_kept_from_being_made() -> None:
    seen = latenesses(1.0)
    assert len(seen) == 1 + round(1.0 / PROBE_SECONDS) and seen[0] == 1.0
    assert sum(seen) / len(seen) == pytest.approx(0.5)  # as late as something due at a random moment is
    assert len(latenesses(1e9)) == MAX_MISSED + 1


async def test_no_probe_is_lost_between_two_looks() -> None:
    lag = Metrics(CollectorRegistry()).loop_lag_seconds

    def count() -> float:
        return next(s.value for m in lag.collect() for s in m.samples if s.name.endswith("_count"))

    watch = asyncio.create_task(watch_lag(lag))
    async with asyncio.timeout(10):
        while count() < 2:
            await asyncio.sleep(0.001)
    watch.cancel()
