"""Quotas: a minute's worth at once, then evenly; debts are paid first; keys do not share."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from foveal.api.quotas import Quotas
from foveal.errors import RateLimited
from foveal.settings import Settings


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_requests_are_counted_for_each_key_and_come_back_evenly() -> None:
    clock = Clock()
    quotas = Quotas(60, 0, clock)
    for _ in range(60):
        quotas.enter("key-0")
    with pytest.raises(RateLimited, match="--key-requests-per-minute") as refusal:
        quotas.enter("key-0")
    assert refusal.value.retry_after == pytest.approx(1.0)
    quotas.enter("key-1")
    clock.now = 1.01
    quotas.enter("key-0")


def test_tokens_may_be_overdrawn_once_and_the_debt_is_paid_first() -> None:
    clock = Clock()
    quotas = Quotas(0, 600, clock)
    quotas.enter("key-0")
    quotas.charge("key-0", 1200)
    with pytest.raises(RateLimited, match="--key-tokens-per-minute") as refusal:
        quotas.enter("key-0")
    assert refusal.value.retry_after == pytest.approx(60.1)
    clock.now = 60.2
    quotas.enter("key-0")


def test_without_limits_nothing_is_kept() -> None:
    quotas = Quotas(0, 0, Clock())
    for _ in range(1000):
        quotas.enter("key-0")
        quotas.charge("key-0", 1 << 30)
    assert not quotas._requests and not quotas._tokens


def test_quotas_of_keys_need_keys() -> None:
    with pytest.raises(ValidationError, match="api_key"):
        Settings(key_requests_per_minute=1)
    assert Settings(key_requests_per_minute=1, api_key=("a",)).key_requests_per_minute == 1
