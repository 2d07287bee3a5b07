"""Whether to try again and how long to wait, as plain functions."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from foveal_client import (
    APIStatusError,
    ConnectionFailed,
    ConnectionLost,
    ConnectTimeout,
    DeadlineExceeded,
    FovealError,
    InternalError,
    InvalidResponse,
    Overloaded,
    RateLimited,
    Unavailable,
    UrlFailed,
)
from foveal_client._answers import parse_retry_after
from foveal_client._retry import Clock, Tries, should_retry, wait_seconds

NOON = datetime(2026, 11, 29, 12, 0, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        pytest.param(ConnectionFailed("refused", retryable=True), True, id="refused"),
        pytest.param(ConnectionFailed("no such host"), False, id="name unknown"),
        pytest.param(ConnectTimeout("silence"), False, id="connect timeout"),
        pytest.param(ConnectionLost("closed", retryable=True), True, id="closed before an answer"),
        pytest.param(ConnectionLost("closed"), False, id="closed within an answer"),
        pytest.param(RateLimited("quota"), True, id="429"),
        pytest.param(APIStatusError("a proxy's", status=429), True, id="429 of a proxy"),
        pytest.param(Overloaded("full"), True, id="503"),
        pytest.param(Unavailable("no worker", retryable=False), False, id="503 that says no"),
        pytest.param(UrlFailed("other host"), False, id="424"),
        pytest.param(InternalError("bug"), False, id="500"),
        pytest.param(DeadlineExceeded("late"), False, id="deadline"),
        pytest.param(InvalidResponse("odd"), False, id="malformed"),
    ],
)
def test_only_what_is_safe_and_may_help_is_tried_again(error: FovealError, expected: bool) -> None:
    assert should_retry(error) is expected


def test_the_servers_word_wins_over_our_guess() -> None:
    assert wait_seconds(Overloaded("full", retry_after=12.5), 0, 0.5) == 12.5
    assert wait_seconds(Overloaded("full", retry_after=0.0), 3, 0.5) == 0.0


@pytest.mark.parametrize(("retries_done", "longest"), [(0, 1.0), (1, 2.0), (2, 4.0), (3, 8.0), (4, 8.0), (5000, 8.0)])
def test_waits_double_up_to_a_cap_and_are_spread(retries_done: int, longest: float) -> None:
    error = Overloaded("full")
    assert wait_seconds(error, retries_done, 0.0) == 0.5
    assert wait_seconds(error, retries_done, 0.5) == (0.5 + longest) / 2
    assert wait_seconds(error, retries_done, 1.0) == longest


def test_a_broken_connection_is_replaced_at_once_and_only_once() -> None:
    assert wait_seconds(ConnectionLost("closed", retryable=True), 0, 0.9) == 0.0
    assert wait_seconds(ConnectionLost("closed", retryable=True), 1, 0.0) == 0.5


def test_no_wait_reaches_past_the_deadline() -> None:
    tries = Tries(deadline=10.0, max_retries=5, clock=Clock(now=lambda: 8.0, random=lambda: 0.0))
    assert tries.wait_after(Overloaded("full", retry_after=1.9)) == 1.9
    full = Overloaded("full", retry_after=2.0)
    with pytest.raises(Overloaded) as caught:
        tries.wait_after(full)
    assert caught.value is full


def test_retries_are_counted() -> None:
    tries = Tries(deadline=100.0, max_retries=2, clock=Clock(now=lambda: 0.0, random=lambda: 0.0))
    assert [tries.wait_after(Overloaded("full")) for _ in range(2)] == [0.5, 0.5]
    with pytest.raises(Overloaded):
        tries.wait_after(Overloaded("full"))


def test_nothing_is_left_after_the_deadline() -> None:
    tries = Tries(deadline=10.0, max_retries=0, clock=Clock(now=lambda: 10.0))
    with pytest.raises(DeadlineExceeded):
        tries.seconds_left()


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, None),
        ("3", 3.0),
        ("0.25", 0.25),
        ("-4", 0.0),
        ("Sun, 29 Nov 2026 12:00:30 GMT", 30.0),
        ("Sun, 29 Nov 2026 11:00:00 GMT", 0.0),
        ("Sun, 29 Nov 2026 12:00:30", 30.0),
        ("soon", None),
        ("nan", None),
        ("inf", None),
        ("", None),
    ],
)
def test_retry_after_is_seconds_or_a_date(header: str | None, seconds: float | None) -> None:
    assert parse_retry_after(header, NOON) == seconds
