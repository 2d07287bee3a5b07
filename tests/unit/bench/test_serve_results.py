"""Figures of a step, what may be said of them, and the exit code of the whole command."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from foveal.bench.serve.generator import STAGES, Samples
from foveal.bench.serve.report import aligned, draw, table
from foveal.bench.serve.results import StepResult, Window, percentiles, summarize
from foveal.bench.serve.server_side import compared, sums
from foveal.bench.serve.verdict import Limits, held, warnings
from foveal.cli import main
from foveal.metrics import Metrics
from tests.unit.bench.scripted import answer, scripted


def samples(latency: list[float], codes: list[int], lag: float = 0.0, cpu: float = 0.1, waits: int = 0) -> Samples:
    """One request a second; codes index ok, overloaded, timeout."""
    count = len(latency)
    stages = np.zeros((count, len(STAGES)), np.float32)
    stages[:, STAGES.index("encode")], stages[:, STAGES.index("total")] = 0.01, 0.015
    return Samples(
        due=np.arange(count, dtype=np.float64),
        lag=np.full(count, lag, np.float32),
        latency=np.array(latency, np.float32),
        codes=np.array(codes, np.int16),
        num_bytes=np.full(count, 1_000_000),
        stages=stages,
        code_names=("ok", "overloaded", "timeout"),
        cpu_seconds=cpu,
        wall_seconds=1.0,
        num_waits=waits,
    )


def step(
    latency: list[float], codes: list[int] | None = None, accepted: frozenset[str] = frozenset(), **more: float
) -> StepResult:
    given = samples(latency, codes or [0] * len(latency), **more)  # type: ignore[arg-type]
    return summarize(given, Window("1/s", 0.0, len(latency), 1, accepted), {})


def test_the_warm_up_is_sent_and_not_counted() -> None:
    result = summarize(samples([9.0, 9.0, 0.02, 0.02], [1, 0, 0, 0]), Window("1/s", 2.0, 2.0), {})
    assert result.num_requests == 2 and result.errors == {}
    assert result.latency_ms["max"] == pytest.approx(20)
    assert result.answered_per_second == result.offered_per_second == 1


def test_a_percentile_is_a_latency_that_somebody_had() -> None:
    found = percentiles(np.array([1.0, 2.0, 3.0, 100.0]))
    assert (found["p50"], found["p99"], found["max"]) == (3.0, 100.0, 100.0)
    assert set(percentiles(np.array([])).values()) == {0.0}


def test_answers_alone_make_the_latency_and_failures_their_own_share() -> None:
    result = step([0.02, 5.0, 0.02, 0.02], [0, 2, 1, 0])
    assert result.latency_ms["max"] == pytest.approx(20)
    assert result.errors == {"overloaded": 1, "timeout": 1}
    assert result.error_share == 0.5
    assert step([0.02] * 4, [0, 1, 1, 0], frozenset({"overloaded"})).error_share == 0


def test_a_server_that_answers_long_after_the_window_does_not_keep_up() -> None:
    slow = step([0.02, 10.0, 10.0, 10.0])
    assert not slow.keeps_up and slow.answered_per_second == pytest.approx(4 / 13)
    assert step([0.02] * 4).keeps_up


def test_time_that_the_server_did_not_see_is_shown_as_outside() -> None:
    result = step([0.035] * 3)
    assert result.stages_ms["outside"]["mean"] == pytest.approx(20, rel=1e-3)
    assert result.stages_ms["encode"]["p50"] == pytest.approx(10, rel=1e-3)
    assert result.answer_mb_per_second == pytest.approx(1)


@pytest.mark.parametrize(
    ("limits", "result", "said"),
    [
        pytest.param(Limits(max_p99_ms=10), step([0.02] * 3), "p99 is 20.0 ms", id="slow"),
        pytest.param(Limits(max_error_share=0.1), step([0.02] * 2, [0, 2]), "timeout 1", id="failing"),
        pytest.param(Limits(max_p99_ms=10), step([0.001], [1]), "nothing was answered", id="silent"),
        pytest.param(
            Limits(max_error_share=0),
            step([0.001], [1], frozenset({"overloaded"})),
            "nothing was answered",
            id="all-refused-as-accepted",
        ),
    ],
)
def test_a_broken_limit_is_named(limits: Limits, result: StepResult, said: str) -> None:
    (sentence,) = limits.broken(result)
    assert said in sentence
    assert held(limits, [result]).startswith("No step")


def test_what_is_held_is_the_highest_rate_inside_the_limits() -> None:
    good, late = step([0.02] * 3), step([0.02, 9.0, 9.0, 9.0])
    assert Limits(100, 0).broken(good) == []
    assert held(Limits(), [good, late]).startswith("Holds 1/s: 1.0 answers/s")


def test_an_overload_that_kept_its_limits_is_not_told_as_a_broken_one() -> None:
    accepted = frozenset({"overloaded"})
    flood = step([0.02, 0.001, 0.001, 0.001], [0, 1, 1, 1], accepted)
    limits = Limits(max_p99_ms=100, max_error_share=0)
    assert limits.broken(flood) == [] and not flood.keeps_up
    assert held(limits, [flood]) == (
        "No step was kept up with. Inside the limits: 1/s, of which 0.2/s were answered, at p50 20.0 ms, p99 20.0 ms."
    )


def test_a_little_lateness_is_told_and_does_not_make_the_generator_the_limit() -> None:
    (sentence,) = warnings([step([0.015] * 500, lag=0.004)], 0)
    assert "4.0 ms late" in sentence and "was the limit" not in sentence
    (sentence,) = warnings([step([0.015] * 500, lag=0.4)], 0)
    assert "the generator was the limit" in sentence


@pytest.mark.parametrize(
    ("more", "said"),
    [({"lag": 0.05}, "late"), ({"cpu": 0.95}, "busy 95%"), ({"waits": 50}, "--max-connections")],
    ids=["late", "busy", "full"],
)
def test_a_sentence_says_when_the_generator_was_the_limit(more: dict[str, float], said: str) -> None:
    (sentence,) = warnings([step([0.1] * 500, **more)], 0)
    assert said in sentence
    assert not list(warnings([step([0.1] * 500)], 0))


def test_few_requests_and_pictures_without_copies_are_warned_of() -> None:
    assert ["rests on" in text or "unchanged" in text for text in warnings([step([0.1])], 3)] == [True, True]


def test_counters_of_the_real_names_are_added_up_and_compared() -> None:
    metrics = Metrics(CollectorRegistry())
    before = sums(generate_latest(metrics.registry).decode())
    metrics.tokens.inc(300)
    metrics.padding_tokens.inc(100)
    metrics.pack_items.observe(3)
    metrics.cache_hits.inc(1)
    metrics.cache_misses.inc(3)
    for budget in ("64", "128"):
        metrics.graph_replays.labels("gpu-0", budget).inc(0.5)
    found = compared(before, sums(generate_latest(metrics.registry).decode()), seconds=10)
    assert found == {
        "tokens_per_second": 30,
        "padding_share": 0.25,
        "items_per_pack": 3,
        "graph_share": 1,
        "cache_hit_share": 0.25,
        "restarts": 0,
    }
    assert compared({}, before, 1) == {}


def test_tables_are_aligned_and_name_what_failed() -> None:
    assert aligned([["a", "bb"], ["ccc", "d"]]) == "a    bb\nccc   d"
    assert "timeout:1" in table([step([0.02] * 2, [0, 2])])


def test_a_picture_is_drawn(tmp_path: Path) -> None:
    draw(tmp_path / "plot.png", [step([0.02] * 3), step([0.03] * 3, [0, 1, 0])], "title")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("answered", [[], [step([0.02] * 3)]], ids=["none", "another"])
@pytest.mark.filterwarnings("error")
def test_a_step_without_an_answer_is_drawn_without_a_complaint(tmp_path: Path, answered: list[StepResult]) -> None:
    draw(tmp_path / "plot.png", [step([0.001] * 3, [1, 1, 1]), *answered], "title")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


async def _service(path: str, body: bytes) -> bytes:
    if path.startswith("/encode") and not body.startswith(b"\xff\xd8"):
        return answer(b'{"error": {"code": "undecodable"}}', 422)
    return answer(b'{"model": "scripted"}', 200, "Server-Timing: total;dur=1")


@pytest.mark.parametrize(("name", "exit_code"), [("a.jpg", 0), ("a.gif", 1)])
def test_the_command_sends_reports_and_ends_with_a_verdict(tmp_path: Path, name: str, exit_code: int) -> None:
    pictures, out = tmp_path / "pictures", tmp_path / "out.json"
    pictures.mkdir()
    (pictures / name).write_bytes(b"\xff\xd8" if name.endswith("jpg") else b"GIF89a")
    flags = ["--rates", "200", "--seconds", "0.2", "--warmup-seconds", "0", "--folder", str(pictures)]
    with scripted(_service) as url:
        command = ["bench", "serve", "--url", url, *flags, "--processes", "1", "--process", "constant"]
        assert main([*command, "--max-error-share", "0.5", "--json", str(out)]) == exit_code
    report = json.loads(out.read_text())
    assert report["server"] == {"model": "scripted"}
    assert report["steps"][0]["num_requests"] == 40
    assert bool(report["broken"]) == bool(exit_code)


@pytest.mark.parametrize(
    "flags",
    [
        ["--images-per-request", "2"],
        ["--option", "nothing"],
        ["--max-connections", "5000"],
        ["--trace", "x.csv"],
        ["--wait-ready-seconds", "0"],
    ],
    ids=lambda flags: flags[0],
)
def test_what_cannot_be_done_is_said_at_once(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "serve", "--url", "http://127.0.0.1:9", *flags]) == 2
    assert capsys.readouterr().err.startswith("foveal: ")
