"""How late the event loop runs what is due: whatever a caller waits for is at least that late."""

from __future__ import annotations

import asyncio
import time

from prometheus_client import Histogram

PROBE_SECONDS = 0.05
MAX_MISSED = 1200
"""A minute of probes that one standstill is counted for, at most."""


async def watch_lag(lag_seconds: Histogram) -> None:
    """Probe for ever. Each probe is an observation, so that no scrape misses a standstill between two of them."""
    while True:
        due = time.monotonic() + PROBE_SECONDS
        await asyncio.sleep(PROBE_SECONDS)
        for late in latenesses(time.monotonic() - due):
            lag_seconds.observe(late)


def latenesses(late: float) -> list[float]:
    """What a probe saw that came so many seconds late, and what those would have seen that it kept from being made.

    With them a standstill counts for as long as it lasted, not once.
    """
    missed = min(int(max(late, 0.0) / PROBE_SECONDS), MAX_MISSED)
    return [max(0.0, late - i * PROBE_SECONDS) for i in range(missed + 1)]
