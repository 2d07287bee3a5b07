"""The knee is found in few steps, one hiccup does not end a curve, and the row says what was busiest."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveal.bench.curves import cpu
from foveal.bench.curves.cases import CASES, own_case, plans_of
from foveal.bench.curves.device import peak_images, replay_share
from foveal.bench.curves.report import tables
from foveal.bench.curves.search import CLOSE, Limit, limit_of, search
from foveal.bench.curves.servers import is_settled
from foveal.bench.curves.usage import Reading, Usage, usage
from foveal.cli import main
from foveal.families.catalogue import local_spec

LIMIT = Limit(30.0, "3 x p50 alone")


@dataclass(frozen=True)
class Scripted:
    p99_ms: float
    keeps_up: bool = True
    error_share: float = 0.0


class Server:
    """p99 of a queue with one server that could answer `capacity` a second; `hiccups` are places of late steps."""

    def __init__(self, capacity: float, hiccups: tuple[int, ...] = (), past: Callable[[], Scripted] | None = None):
        self.capacity, self.hiccups, self.past = capacity, hiccups, past
        self.asked: list[float] = []

    def __call__(self, rate: float) -> Scripted:
        self.asked.append(rate)
        if rate >= self.capacity:
            return self.past() if self.past else Scripted(1e4, keeps_up=False, error_share=0.3)
        if len(self.asked) - 1 in self.hiccups:
            return Scripted(500.0)
        return Scripted(10.0 / (1 - rate / self.capacity))

    @property
    def knee(self) -> float:
        return self.capacity * 2 / 3  # where p99 is 30


@given(st.floats(1.0, 1e5), st.floats(0.001, 100.0))
def test_the_highest_rate_that_holds_is_found_from_any_start(capacity: float, first_share: float) -> None:
    server = Server(capacity)
    found = search(server, LIMIT, capacity * first_share, 40)
    assert found is not None
    rate, step = found
    assert server.asked[step] == rate
    assert server.knee / CLOSE <= rate * 1.0001 and rate <= server.knee


def test_steps_double_and_then_close_the_gap() -> None:
    server = Server(150.0)
    assert search(server, LIMIT, 10.0, 20) is not None
    assert server.asked[:5] == [10, 20, 40, 80, 160]
    assert len(server.asked) == 8


def test_no_more_steps_are_made_than_were_given() -> None:
    server = Server(1e9)
    assert search(server, LIMIT, 1.0, 6) == (32.0, 5)
    assert len(server.asked) == 6


def test_a_hiccup_on_the_way_up_is_tried_again() -> None:
    smooth, shaken = Server(1000.0), Server(1000.0, hiccups=(2,))
    expected, found = search(smooth, LIMIT, 10.0, 30), search(shaken, LIMIT, 10.0, 30)
    assert expected is not None and found is not None and found[0] == expected[0]
    assert len(shaken.asked) == len(smooth.asked) + 1


def test_a_rate_that_is_late_twice_has_failed() -> None:
    server = Server(1000.0, hiccups=(2, 3))
    found = search(server, LIMIT, 10.0, 30)
    assert found is not None and found[0] < 40


@pytest.mark.parametrize(
    "trial",
    [Scripted(1.0, keeps_up=False), Scripted(1.0, error_share=0.01), Scripted(31.0)],
    ids=["falls behind", "refuses one", "is late"],
)
def test_what_is_not_answered_in_time_and_in_full_does_not_hold(trial: Scripted) -> None:
    assert not LIMIT.holds(trial)
    assert search(lambda rate: trial, LIMIT, 8.0, 5) is None


def test_a_rate_that_was_not_kept_up_with_is_not_tried_again() -> None:
    server = Server(30.0)
    search(server, LIMIT, 8.0, 5)
    assert server.asked[:3] == [8, 16, 32] and server.asked[3] == pytest.approx(math.sqrt(16 * 32))


def test_the_limit_is_three_medians_or_more_where_large_pictures_alone_take_that_long() -> None:
    assert limit_of(10.0, 12.0, is_mixed=True) == Limit(30.0, "3 x p50 alone")
    assert limit_of(10.0, 40.0, is_mixed=True) == Limit(60.0, "1.5 x p99 alone")


def test_noise_does_not_widen_the_limit_of_pictures_of_one_size() -> None:
    assert limit_of(10.0, 400.0, is_mixed=False) == Limit(30.0, "3 x p50 alone")


QUIET = Usage(0.4, 0.5, 0.2, 0.3, 1.0, 0.1, 0.3, {}, 0.0, 0.0, 0.0)


@pytest.mark.parametrize("part, name", [("gpu", "GPU"), ("prep", "prep"), ("api", "api"), ("generator", "generator")])
def test_the_part_nearest_to_its_limit_is_named(part: str, name: str) -> None:
    assert replace(QUIET, **{part: 0.93}).busiest == f"{name} 93%"


def test_nothing_is_blamed_that_was_not_full() -> None:
    assert QUIET.busiest == "none full; GPU 40%"


def test_a_worker_that_waits_for_its_device_is_not_the_limit_but_on_a_cpu_it_is() -> None:
    assert replace(QUIET, gpu=0.9).busiest == "GPU 90%"
    assert replace(QUIET, gpu=0.0).busiest == "worker 100%"


def test_usage_is_what_grew_between_the_first_reading_and_the_last() -> None:
    def reading(at: float, busy: float, replays: float, lag: float) -> Reading:
        parts = {
            "server": {10: {10: busy, 11: busy / 4}},
            "prep": {20: {20: busy / 2}, 21: {21: 0.0}},
            "generator": {30: {30: busy / 5}, 31: {31: busy / 10}},
        }
        samples = {
            "foveal_egress_bytes_total": 5e6 * at,
            "foveal_pack_items_sum": 8 * replays,
            "foveal_pack_items_count": replays,
            "foveal_loop_lag_seconds": lag,
        }
        return Reading(at, cpu.CpuReading(parts, busy), samples, {"64": replays})

    found = usage(
        [reading(100.0, 7.0, 50, 0.0), reading(101.0, 8.0, 70, 0.004), reading(102.0, 8.6, 150, 0.001)], {"64": 10}, 0.0
    )
    assert found.gpu == pytest.approx(100 * 0.010 / 2)
    assert found.api == pytest.approx(0.8) and found.cores["server"] == pytest.approx(1.0)
    assert found.prep == pytest.approx(0.2) and found.cores["prep"] == pytest.approx(0.4)
    assert found.generator == pytest.approx(0.16)
    assert found.loop_lag_ms == 4 and found.egress_mb_per_second == pytest.approx(5) and found.items_per_pack == 8


def test_a_process_that_was_replaced_meanwhile_is_left_out() -> None:
    before = cpu.CpuReading({"prep": {1: {1: 100.0}}}, 0.0)
    after = cpu.CpuReading({"prep": {2: {2: 3.0}}}, 0.0)
    assert cpu.shares(before, after, 1.0) == {}


def test_the_time_of_replays_is_how_often_each_budget_ran() -> None:
    assert replay_share({"64": 10.0}, {"64": 110.0, "128": 50.0}, {"64": 2.0, "128": 4.0}, 1.0) == pytest.approx(0.4)
    budgets = [
        {"tokens": 64, "milliseconds": 2.0},
        {"tokens": 1024, "milliseconds": 8.0},
        {"tokens": 8, "milliseconds": 0},
    ]
    assert peak_images(budgets, 256) == 500


def test_a_server_that_still_captures_is_not_measured_yet() -> None:
    assert not is_settled({"workers": [{"stage": "ready, 3 graphs captured so far"}]})
    assert is_settled({"workers": [{"stage": "ready"}]}) and is_settled({"processor": "plain"})


@pytest.mark.parametrize(
    "name, tokens, kind", [("siglip2-base-256", 256, "pooled"), ("qwen3-vl-2b-448", 196, "tokens")]
)
def test_pictures_of_a_case_are_what_its_name_says(name: str, tokens: int, kind: str) -> None:
    case = CASES[name]
    spec = local_spec(case.model, dummy_weights=True)
    assert spec.default_output == kind
    assert {plan.num_tokens for plan in plans_of(case.pictures(0)[:2], spec)} == {tokens}


def test_a_model_of_ones_own_names_its_logs_safely() -> None:
    case = own_case("builtin:tiny", ["256x192"])
    assert (case.name, case.size) == ("builtin-tiny", (256, 192))


def told(server: str, rate: float, knee: int | None) -> dict[str, object]:
    latency = {"p50": 5.0, "p99": 12.0}
    result = {"answered_per_second": rate, "latency_ms": latency, "errors": {}, "answer_mb_per_second": 3.0}
    used = {name: 0.5 for name in ("gpu", "nvml", "prep", "api", "worker", "generator", "machine")}
    step = {
        "rate": rate,
        "result": result,
        "usage": used | {"loop_lag_ms": 1.0, "items_per_pack": 2.0},
        "busiest": "api 91%",
    }
    limit = {"p99_ms": 15.0, "rule": "3 x p50 alone"}
    return {"server": server, "alone_ms": latency, "limit": limit, "steps": [step], "knee": knee}


def case_told(knee: int | None) -> dict[str, object]:
    curves = [told("service", 400.0, 0), told("plain", 50.0, knee)]
    return {"name": "c", "engine_images_per_second": 800.0, "gpu_images_per_second": 900.0, "curves": curves}


def test_the_tables_say_shares_and_ratios() -> None:
    text = tables([case_told(0)])
    assert "50%" in text and "api 91%" in text and "holds 8.0 times the plain" in text


def test_a_server_that_held_no_rate_has_no_ratio() -> None:
    assert "times the plain" not in tables([case_told(None)])


def test_a_report_is_drawn_from_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    file = tmp_path / "curves.json"
    file.write_text(json.dumps({"cases": [case_told(0)]}))
    assert main(["bench", "report", str(file)]) == 0
    assert "api 91%" in capsys.readouterr().out and (tmp_path / "curves.png").stat().st_size > 1000


def test_a_file_of_another_kind_is_refused_with_a_sentence(tmp_path: Path) -> None:
    file = tmp_path / "other.json"
    file.write_text("[]")
    assert main(["bench", "report", str(file)]) == 2
