"""Replay equals the direct call equals alone, whatever the buffers held, for every budget, at full speed."""

from __future__ import annotations

import random
from collections import deque
from pathlib import Path

import numpy as np
import pytest
import torch

from foveal.bench.feeder import TOKENS
from foveal.gpu.layout import BadPack, Step
from foveal.types import Output
from tests.gpu.machine import Machine, as_float, vision
from tests.unit.gpu.bench import Picture, picture

pytestmark = pytest.mark.gpu
POOLED = Output("pooled", "float32", normalize=True)
STEPS = tuple(Step(t, min(t, 16)) for t in (8, 32, 64, 96, 128, 256, 512))


@pytest.fixture(scope="module", params=[64, 72, 80, 128], ids=lambda d: f"head{d}")
def machine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Machine:
    made = Machine(tmp_path_factory.mktemp("model"), STEPS, vision(request.param))
    made.capture_all()
    return made


def pictures_for(tokens: int, count: int, seed: int) -> list[Picture]:
    """Pictures that fill so many tokens, no two alike."""
    rng = random.Random(seed)
    sizes = [tokens // count + (i < tokens % count) for i in range(count)]
    rng.shuffle(sizes)
    return [picture(seed * 1000 + i, 2, 2 * size) for i, size in enumerate(sizes)]


@pytest.mark.parametrize("fill", ["one", "several", "full"])
def test_replay_equals_direct_call_equals_alone_over_poisoned_buffers(machine: Machine, fill: str) -> None:
    for step in machine.ladder.steps.values():
        count = {"one": 1, "several": min(5, step.items), "full": min(step.items, 16)}[fill]
        tokens = step.tokens if fill == "full" else max(count, step.tokens - 3)
        shown = pictures_for(tokens, count, step.tokens)
        machine.poison()
        machine.poison_pool()
        replayed = machine.encode(shown, step.tokens)
        assert machine.submit([machine.shown(shown[0])[0]], step.tokens).finish().mode == "graph"
        graph = machine.graphs._graphs.pop(step)
        machine.poison()
        direct = machine.encode(shown, step.tokens)
        machine.graphs._graphs[step] = graph
        alone = [machine.encode([one], step.tokens)[0] for one in shown]
        assert replayed == direct == alone
        machine.poison()
        pooled = machine.encode(shown, step.tokens, POOLED)
        assert pooled == [machine.encode([one], step.tokens, POOLED)[0] for one in shown]
        assert all(np.isfinite(as_float(raw)).all() for raw in replayed)


def test_eager_without_a_budget_is_near_the_graph(machine: Machine) -> None:
    shown = pictures_for(300, 3, 7)
    for eager, graph in zip(machine.encode(shown, 0), machine.encode(shown, 512), strict=True):
        a, b = as_float(eager), as_float(graph)
        assert np.linalg.norm(a - b) <= 2e-2 * np.linalg.norm(b)


def test_small_large_small_gives_the_small_one_again(machine: Machine) -> None:
    small, large = pictures_for(6, 2, 1), pictures_for(512, 9, 2)
    before = machine.encode(small, 8), machine.encode(small, 512)
    machine.encode(large, 512)
    assert (machine.encode(small, 8), machine.encode(small, 512)) == before


def test_the_same_picture_has_the_same_bits_wherever_it_sits(machine: Machine) -> None:
    shown, others = picture(1, 6, 10), [picture(i, 2, 2 * i) for i in range(2, 8)]
    (alone,) = machine.encode([shown], 128)
    for place in range(len(others) + 1):
        assert machine.encode([*others[:place], shown, *others[place:]], 128)[place] == alone


@pytest.mark.parametrize("budget", [128, 0], ids=["replayed", "eager"])
def test_pooled_and_token_answers_share_a_pack(machine: Machine, budget: int) -> None:
    shown = pictures_for(120, 6, 21)
    wishes = [TOKENS, POOLED] * 3
    machine.poison()
    mixed = machine.encode(shown, budget, wishes)
    for output in (TOKENS, POOLED):
        for wish, found, alike in zip(wishes, mixed, machine.encode(shown, budget, output), strict=True):
            assert wish != output or found == alike


def test_a_pooled_answer_that_is_not_finite_fails_alone(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = pictures_for(12, 3, 9)
    step = machine.ladder.steps[32]
    graph = machine.graphs._graphs.pop(step)
    forward = machine.tower.forward

    def spoiled(inputs, out):
        forward(inputs, out)
        out.pooled[1, 3] = 1e6

    monkeypatch.setattr(machine.tower, "forward", spoiled)
    done = {}
    for dtype in ("float16", "float32"):
        output = Output("pooled", dtype)  # type: ignore[arg-type]
        done[dtype] = machine.submit([machine.shown(one, output)[0] for one in shown], 32).finish().failures
    monkeypatch.undo()
    machine.graphs._graphs[step] = graph
    assert [failure[:2] for failure in done["float16"]] == [(1, "dtype_overflow")] and done["float32"] == ()


def test_the_host_never_waits_for_the_device_while_it_issues_a_pack(machine: Machine) -> None:
    items = [machine.shown(one) for one in pictures_for(120, 6, 3)]
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        running = machine.submit([item for item, _, _ in items], 128)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    running.finish()


def test_ten_thousand_random_packs_at_full_speed_give_each_picture_its_own(machine: Machine) -> None:
    rng = random.Random(11)
    pool = [picture(i, 2 * rng.randint(1, 4), 2 * rng.randint(1, 8)) for i in range(48)]
    rows = [machine.shown(one) for one in pool]
    budgets = sorted(machine.ladder.steps)
    wanted = {
        (i, b, output): machine.encode([one], b, output)[0]
        for i, one in enumerate(pool)
        for b in budgets
        if one.num_tokens <= b
        for output in (TOKENS, POOLED)
    }
    under_way: deque = deque()

    def check() -> None:
        running, chosen, budget, blocks = under_way.popleft()
        assert not running.finish().failures
        for (i, output), block in zip(chosen, blocks, strict=True):
            assert bytes(block.view) == wanted[i, budget, output], f"picture {i} at budget {budget}"

    for _ in range(10_000 if machine.head_dim == 72 else 1_000):
        budget = rng.choice(budgets)
        step, chosen, left = machine.ladder.steps[budget], [], budget
        while len(chosen) < step.items and rng.random() < 0.8:
            i = rng.randrange(len(pool))
            if pool[i].num_tokens <= left:
                chosen.append((i, rng.choice([TOKENS, TOKENS, POOLED])))
                left -= pool[i].num_tokens
        if not chosen:
            continue
        placed = [machine.item(rows[i][0].rows, pool[i].height, pool[i].width, output) for i, output in chosen]
        under_way.append((machine.submit([p for p, _ in placed], budget), chosen, budget, [b for _, b in placed]))
        if len(under_way) == 2:
            check()
    while under_way:
        check()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("kind", ["tokens", "pooled"])
def test_every_kind_and_dtype_arrives(machine: Machine, kind: str, dtype: str) -> None:
    shown = pictures_for(40, 3, 5)
    output = Output(kind, dtype, normalize=kind == "pooled")  # type: ignore[arg-type]
    exact = [as_float(raw) for raw in machine.encode(shown, 64)]
    for raw, rows in zip(machine.encode(shown, 64, output), exact, strict=True):
        got = as_float(raw, dtype)
        if kind == "tokens":
            np.testing.assert_allclose(got, rows, rtol=1e-2 if dtype == "float16" else 0, atol=1e-6)
        else:
            assert abs(np.linalg.norm(got) - 1) < 1e-2


def test_an_item_that_is_not_finite_fails_alone(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = pictures_for(12, 3, 9)
    step = machine.ladder.steps[32]
    graph = machine.graphs._graphs.pop(step)
    forward = machine.tower.forward

    def spoiled(inputs, out):
        forward(inputs, out)
        out.tokens[5, 3] = float("nan")

    monkeypatch.setattr(machine.tower, "forward", spoiled)
    done = machine.submit([machine.shown(one)[0] for one in shown], 32).finish()
    monkeypatch.undo()
    machine.graphs._graphs[step] = graph
    assert [failure[:2] for failure in done.failures] == [(1, "internal")] and done.reason == "not_captured"


def test_capacities_are_checked_before_anything_is_issued(machine: Machine) -> None:
    items = [machine.shown(picture(i, 2, 2))[0] for i in range(17)]
    for wrong, budget in ((items, 64), (items[:9], 8), (items[:1], 63), ([], 64)):
        with pytest.raises(BadPack):
            machine.submit(wrong, budget)


def test_float32_and_graphs_agree_with_the_cpu(tmp_path: Path) -> None:
    from tests.unit.gpu.bench import Bench

    steps = (Step(16, 4), Step(64, 8))
    machine = Machine(tmp_path, steps, vision(72), torch.float32)
    machine.capture_all()
    cpu = Bench(tmp_path, steps, dummy=True)
    shown = pictures_for(50, 4, 13)
    output = Output("tokens", "float32")
    for raw, rows in zip(machine.encode(shown, 64, output), cpu.encode(shown, 64), strict=True):
        got = as_float(raw, "float32").reshape(rows.shape)
        assert np.linalg.norm(got - rows) <= 1e-4 * np.linalg.norm(rows)
