"""Which LLM server is asked: fewest open first, those away not before their time, one at a time on trial."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from foveal.errors import ConfigurationError, Overloaded
from foveal.handover.headers import to_caller, to_llm
from foveal.handover.upstreams import MAX_AWAY_SECONDS, Upstreams, make_upstreams
from foveal.metrics import Metrics
from foveal.settings import Settings

DOWN = ConnectionError("refused")


@dataclass
class Clock:
    now: float = 100.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Three:
    clock: Clock = field(default_factory=Clock)
    most: int = 1000
    metrics: Metrics = field(default_factory=lambda: Metrics(CollectorRegistry()))

    def __post_init__(self) -> None:
        urls = [f"http://{name}:1" for name in "abc"]
        self.all = Upstreams(urls, self.most, 1.0, self.metrics, self.clock)

    def take(self) -> str:
        found = self.all.take()
        assert found is not None
        return found.name[0]

    def fail(self, name: str) -> None:
        self.all.unreached(self.one(name), DOWN)

    def one(self, name: str):  # type: ignore[no-untyped-def]
        return next(one for one in self.all.all if one.name == f"{name}:1")


def test_requests_spread_evenly_and_go_where_fewest_are_open() -> None:
    three = Three()
    assert sorted(three.take() for _ in range(6)) == list("aabbcc")
    three.all.give_back(three.one("b"))
    assert three.take() == "b"


def test_ties_rotate() -> None:
    three = Three()
    found = []
    for _ in range(6):
        found.append(three.take())
        three.all.give_back(three.one(found[-1]))
    assert sorted(found) == list("aabbcc")


def test_one_that_failed_is_passed_over_for_longer_each_time() -> None:
    three = Three()
    waits = []
    for _ in range(12):
        three.fail("a")
        waits.append(three.one("a").back_at - three.clock.now)
        assert "a" not in [three.take() for _ in range(6)]
        three.clock.now = three.one("a").back_at
    assert waits == sorted(waits) and waits[1] == 2 * waits[0] and waits[-1] == MAX_AWAY_SECONDS


def test_one_request_at_a_time_tries_whether_it_is_back() -> None:
    three = Three()
    three.fail("a")
    three.clock.now += MAX_AWAY_SECONDS
    taken = [three.take() for _ in range(9)]
    assert taken.count("a") == 1
    three.all.reached(three.one("a"))
    assert three.take() == "a" and three.take() == "a"


def test_when_all_are_away_the_first_to_be_back_is_tried() -> None:
    three = Three()
    for name in "cab":
        three.fail(name)
        three.clock.now += 0.01
    assert three.take() == "c"


def test_those_asked_already_are_left_out_and_then_there_is_none() -> None:
    three = Three()
    asked = []
    while (found := three.all.take(but=asked)) is not None:
        asked.append(found)
    assert sorted(one.name for one in asked) == ["a:1", "b:1", "c:1"]


def test_more_than_the_limit_are_refused() -> None:
    three = Three(most=2)
    three.take(), three.take()
    with pytest.raises(Overloaded, match="--llm-max-requests"):
        three.take()


@given(st.lists(st.tuples(st.sampled_from(["take", "back", "fail", "reach", "wait"]), st.integers(0, 9)), max_size=60))
def test_counts_never_drift_and_somebody_is_always_asked(steps: list) -> None:
    three, taken = Three(), []
    for step, number in steps:
        if step == "take":
            found = three.all.take()
            assert found is not None
            taken.append(found)
        elif step == "back" and taken:
            three.all.give_back(taken.pop(number % len(taken)))
        elif step == "fail":
            three.fail("abc"[number % 3])
        elif step == "reach":
            three.all.reached(three.one("abc"[number % 3]))
        else:
            three.clock.now += number
        assert three.metrics.gateway_open_requests._value.get() == len(taken)
        assert [one.num_open for one in three.all.all] == [taken.count(one) for one in three.all.all]


@pytest.mark.parametrize(
    ("url", "host", "path"),
    [
        ("http://llm:8000", b"llm:8000", b""),
        ("http://llm/v1", b"llm", b""),
        ("https://llm:444/base/v1", b"llm:444", b"/base"),
        ("http://[::1]:80", b"[::1]:80", b""),
    ],
    ids=str,
)
def test_urls_are_understood_as_clients_write_them(url: str, host: bytes, path: bytes) -> None:
    found = make_upstreams(Settings(llm_url=(url,)), Metrics(CollectorRegistry()))
    assert found is not None
    (one,) = found.all
    assert (one.host_header, one.path) == (host, path) and (found.tls is not None) == url.startswith("https")


def test_a_password_in_a_url_is_refused_and_not_shown() -> None:
    with pytest.raises(ConfigurationError) as caught:
        make_upstreams(Settings(llm_url=("http://me:word@llm",)), Metrics(CollectorRegistry()))
    assert "word@" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "host", "port", "is_it"),
    [
        ("http://127.0.0.1:8000", "127.0.0.1", 8000, True),
        ("http://LOCALHOST:8000/v1", "127.0.0.1", 8000, True),
        ("http://127.0.0.1:8000", "0.0.0.0", 8000, True),
        ("http://[::1]:8000", "::", 8000, True),
        ("http://llm", "llm", 80, True),
        ("http://127.0.0.1:8001", "127.0.0.1", 8000, False),
        ("http://127.0.0.1:8000", "10.0.0.1", 8000, False),
        ("http://llm:8000", "0.0.0.0", 8000, False),
        ("https://llm", "llm", 80, False),
        ("http://127.0.0.1:8000", "127.0.0.1", 0, False),
    ],
    ids=str,
)
def test_this_server_is_not_asked_by_itself(url: str, host: str, port: int, is_it: bool) -> None:
    settings = Settings(llm_url=(url,), host=host, port=port)
    with pytest.raises(ConfigurationError, match="itself") if is_it else contextlib.nullcontext():
        make_upstreams(settings, Metrics(CollectorRegistry()))


def test_what_does_not_count_is_never_too_many_and_none_of_those_open() -> None:
    three = Three(most=1)
    three.take()
    uncounted = [three.all.take(counts=False) for _ in range(5)]
    assert three.metrics.gateway_open_requests._value.get() == 1
    for one in uncounted:
        assert one is not None
        three.all.give_back(one, counts=False)
    assert sum(one.num_open for one in three.all.all) == three.metrics.gateway_open_requests._value.get() == 1


HEADERS = st.lists(
    st.tuples(st.sampled_from([b"A", b"Host", b"TE", b"X-Gone", b"Authorization"]), st.binary(max_size=3))
)


@given(HEADERS, st.sampled_from([b"X-Gone", b"x-gone, close", b"keep-alive"]))
def test_only_headers_of_the_message_pass_both_ways(headers: list, connection: bytes) -> None:
    sent = [*headers, (b"Connection", connection)]
    names = [name.lower() for name, _ in to_llm(sent, "id", None, passes_authorization=False)]
    assert not {b"host", b"te", b"connection", b"authorization"} & set(names)
    assert names.count(b"x-request-id") == 1
    assert (b"x-gone" in names) <= (connection == b"keep-alive")
    assert names.count(b"a") == [name for name, _ in headers].count(b"A")
    back = [name for name, _ in to_caller([*sent, (b"Date", b"now"), (b"X-Request-ID", b"x")])]
    assert not {b"te", b"connection", b"date", b"x-request-id"} & set(back)
