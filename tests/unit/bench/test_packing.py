"""The simulated queue keeps the goals for padding, and the rule it is compared with is the published one."""

from __future__ import annotations

import itertools
import json
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from foveal.bench.mixture import plans
from foveal.bench.packing import (
    POWERS_OF_TWO,
    ByCost,
    Costs,
    NextFit,
    Result,
    Waiting,
    assumed_costs,
    compare,
    next_fit,
    simulate,
)
from foveal.bench.report import draw, table
from foveal.cli import main
from foveal.engine.ladder import Attention, inferred_budgets
from foveal.errors import ConfigurationError

COSTS = assumed_costs(inferred_budgets(8192), 64, 0.5, 0.0066, Attention())


def simulated(depth: int, num_packs: int, num_workers: int = 1, costs: Costs = COSTS) -> Result:
    return simulate("by cost", ByCost(costs.ladder()), costs, plans(1), depth, num_packs, num_workers)


@pytest.mark.parametrize(("depth", "num_packs", "goal"), [(1, 1500, 0.06), (4, 800, 0.03), (16, 300, 0.03)])
def test_padding_keeps_its_goals(depth: int, num_packs: int, goal: float) -> None:
    result = simulated(depth, num_packs)
    assert result.padding <= goal
    assert 1.0 <= result.time_ratio <= 1.05
    assert result.max_waited < depth


def test_several_workers_share_a_queue() -> None:
    result = simulated(depth=8, num_packs=200, num_workers=3)
    assert result.padding <= 0.03 and result.num_packs == 200


def test_attention_is_in_both_the_time_and_the_ideal() -> None:
    attention = Attention(1e-8, 2560)
    costs = assumed_costs(inferred_budgets(8192), 64, 0.5, 0.0066, attention)
    assert costs.line() == pytest.approx((0.5, 0.0066))
    assert simulated(1, 200, costs=costs).time_ratio == pytest.approx(simulated(1, 200).time_ratio, abs=0.01)


def test_the_other_rule_pads_more_at_every_depth() -> None:
    results = compare(COSTS, (1, 4), 200, 1, seed=3)
    for other, powers, ours in zip(results[::3], results[1::3], results[2::3], strict=True):
        assert other.padding >= powers.padding > ours.padding


def waiting(*tokens: int) -> list[Waiting]:
    return [Waiting(t, 4 * t, 0.0, 0) for t in tokens]


def rounds(*tokens: int) -> list[list[int]]:
    return [[image.num_tokens for image in pack] for pack in next_fit(waiting(*tokens), COSTS.ladder(POWERS_OF_TWO))]


def test_next_fit_ascends_closes_at_the_largest_budget_and_at_the_number_of_images() -> None:
    assert rounds(5000, 4000, 4100) == [[4000, 4100], [5000]]
    assert [len(pack) for pack in rounds(*[64] * 70)] == [64, 6]
    assert rounds(100, 9000, 120) == [[100, 120], [9000]]


def test_next_fit_defers_an_image_that_would_promote_the_pack() -> None:
    assert rounds(100, 1000) == [[100], [1000]]
    assert rounds(100, 900) == [[100, 900]]


def test_a_round_is_taken_whole_before_the_next_is_formed() -> None:
    rule, queue = NextFit(COSTS.ladder(POWERS_OF_TWO)), waiting(100, 1000, 9000)
    taken = []
    for _ in range(3):
        pack = rule.take(queue, 0.0)
        taken.append((pack.num_tokens, pack.budget and pack.budget.tokens))
        queue = [image for i, image in enumerate(queue) if i not in pack.members] + waiting(64)
    assert taken == [(100, 128), (1000, 1024), (9000, None)]


def test_the_mixture_is_the_one_described_and_repeats() -> None:
    tokens = sorted(plan.num_tokens for plan in itertools.islice(plans(0), 4000))
    assert tokens[len(tokens) // 10] == 64
    assert 550 < statistics.median(tokens) < 700
    assert 0 < sum(t > 8192 for t in tokens) < 40
    assert list(itertools.islice(plans(7), 9)) == list(itertools.islice(plans(7), 9))


def test_the_command_prints_a_table_and_writes_json_and_a_plot(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    budgets = [{"tokens": t, "items": min(t, 64), "milliseconds": 1 + t / 100, "bytes": 7} for t in (8192, 64, 1024)]
    costs, out, plot = tmp_path / "costs.json", tmp_path / "out.json", tmp_path / "out.png"
    costs.write_text(json.dumps(budgets))
    flags = ["--costs", str(costs), "--depths", "1", "2", "--packs", "20", "--json", str(out), "--plot", str(plot)]
    assert main(["bench", "packing", *flags]) == 0
    printed = capsys.readouterr().out
    assert "vLLM 0.33, 8 budgets" in printed and "by cost, 3 budgets" in printed
    written = json.loads(out.read_text())
    assert [r["depth"] for r in written["results"]] == [1, 1, 1, 2, 2, 2] and written["given"]["packs"] == 20
    assert plot.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("text", ["{}", "[]", '[{"tokens": 64, "items": 8}]', "no JSON"])
def test_costs_that_are_none_are_refused(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    costs = tmp_path / "costs.json"
    costs.write_text(text)
    assert main(["bench", "packing", "--costs", str(costs)]) == 2
    assert "--costs" in capsys.readouterr().err


def test_a_plot_without_matplotlib_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigurationError, match=r"foveal\[demo\]"):
        draw(tmp_path / "out.png", [simulated(1, 5)])


def test_the_table_is_markdown() -> None:
    lines = table([simulated(1, 5), simulated(2, 5)]).splitlines()
    assert len(lines) == 4 and len({len(line) for line in lines}) == 1 and lines[0].startswith("| depth | by cost, 42")


def test_the_bench_needs_neither_torch_nor_matplotlib() -> None:
    code = "import sys, foveal.cli.bench_packing; sys.exit(bool({'torch', 'matplotlib'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
