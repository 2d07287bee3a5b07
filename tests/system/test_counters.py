"""Counters are exact: after known requests, also where the worker was killed in between and in the midst."""

from __future__ import annotations

import math
import os
import signal
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from foveal_client import Client, Embedding, Undecodable

from .conftest import Running, serving
from .test_encode import noise
from .test_faults import pid_of

OVERSIZE = noise(1060, 1060, 99)
"""More than 1024 tokens."""
Totals = dict[tuple[str, ...], float]


def totals(running: Running) -> Totals:
    """Every counter, and sum and count of every histogram, by name and label values; le and created are left out."""
    text = httpx.get(running.url + "/metrics", trust_env=False).text
    found: Totals = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if family.type in ("counter", "histogram") and not sample.name.endswith(("_bucket", "_created")):
                labels = [value for name, value in sorted(sample.labels.items()) if name not in ("worker", "status")]
                key = (sample.name.removeprefix("foveal_"), *labels)
                found[key] = found.get(key, 0.0) + sample.value
    return found


def kill_worker(running: Running) -> None:
    victim = pid_of(running, "workers")
    os.kill(victim, signal.SIGKILL)
    running.until(lambda: running.info()["workers"][0]["pid"] not in (None, victim))
    running.wait_ready()


def one_after_the_other(client: Client, seeds: range) -> list[Embedding]:
    """Each in a pack of its own."""
    return [client.encode(noise(60 + 50 * (seed % 5), 200, seed)) for seed in seeds]


def expect(found: Totals, encoded: list[Embedding], **others: float) -> None:
    """What everyone got is what was counted."""
    images = {key[1]: value for key, value in found.items() if key[0] == "images_total"}
    assert images == {"encoded": len(encoded), "failed": 0, "cancelled": 0, **others}
    tokens, patches = sum(e.tokens for e in encoded), sum(math.prod(e.grid_thw) for e in encoded)
    assert (found["tokens_total",], found["patches_total",]) == (tokens, patches)
    assert (found["pack_items_sum",], found["pack_tokens_sum",]) == (len(encoded), tokens)
    packs = sum(value for key, value in found.items() if key[0] == "packs_total")
    assert found["pack_items_count",] == found["pack_tokens_count",] == packs
    for stage in ("probe", "prep", "encode"):
        assert found["stage_seconds_count", stage] == len(encoded)


def test_counters_add_up_to_what_callers_got_though_the_worker_is_killed() -> None:
    flags = ("--cpu-workers", "1", "--prep-workers", "1", "--token-budgets", "64,128,512,1024")
    with serving(*flags) as running, Client(running.url, max_retries=0, timeout=60) as client:
        before = totals(running)
        assert not any(value for key, value in before.items() if key[0] in ("images_total", "packs_total"))
        encoded = one_after_the_other(client, range(6))
        kill_worker(running)
        encoded += one_after_the_other(client, range(6, 10))
        encoded.append(client.encode(OVERSIZE))
        encoded.append(client.encode([noise(90, 90, 50)] * 2)[0])  # the second joins the first
        for seed in range(3):
            client.encode(noise(60 + 50 * (seed % 5), 200, seed))  # from the cache, where a dead worker's work lies
        for _ in range(2):
            with pytest.raises(Undecodable):
                client.encode(noise(80, 80, 1)[:900])
        found = totals(running)
        expect(found, encoded, cache_hit=3, coalesced=1, rejected=2)
        packs = {key[1:]: value for key, value in found.items() if key[0] == "packs_total" and value}
        assert packs == {("eager", "cpu"): len(encoded) - 1, ("eager", "oversize"): 1}
        assert found["pack_fill_ratio_count",] == len(encoded) - 1  # an eager pack has no budget to fill
        assert (found["cache_hits_total",], found["cache_misses_total",]) == (3, len(encoded) + 1 + 2)
        assert (found["requests_total", "ok", "/encode"], found["requests_total", "undecodable", "/encode"]) == (15, 2)
        assert found["worker_restarts_total", "worker"] == 1

        with ThreadPoolExecutor(8) as pool:  # now with packs in its hands: they run again, and count once
            calls = [pool.submit(client.encode, noise(320, 320, seed)) for seed in range(200, 224)]
            calls[2].result()
            kill_worker(running)
            encoded += [call.result() for call in calls]
        found = totals(running)
        expect(found, encoded, cache_hit=3, coalesced=1, rejected=2)
        assert found["worker_restarts_total", "worker"] == 2
        assert running.is_empty()
