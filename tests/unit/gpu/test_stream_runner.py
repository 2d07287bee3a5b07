"""Packs under way at once on a device that works late and in any order: each answer is still its own."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
import torch

from foveal.gpu.buffers import Buffers
from foveal.gpu.ladder import GraphLadder
from foveal.gpu.layout import BadPack, Step, embedding_bytes
from foveal.gpu.stream_runner import Running, StreamRunner
from foveal.gpu.towers.protocol import Geometry
from foveal.ipc.arena import Block
from foveal.ipc.messages import PackItem, RunPack, Span
from foveal.types import Output
from tests.unit.gpu.bench import CPU, PackBench, Picture, picture
from tests.unit.gpu.fake_device import FakeDevice, FakeGraphs, install
from tests.unit.gpu.fake_tower import GEOMETRIES, NAN_BYTE, FakeTower

STEPS = (Step(14, 1), Step(42, 4), Step(140, 10))
ROWS, HALVES = Output("tokens", "float32"), Output("tokens", "bfloat16")
POOLED = Output("pooled", "float32", normalize=True)


class Rig:
    """A stream runner on a fake device, and a plain runner on the same arenas that tells what is right."""

    def __init__(self, geometry: Geometry, device: FakeDevice) -> None:
        self.geometry, self.device = geometry, device
        self.truth = PackBench(FakeTower(geometry), STEPS)
        buffers = Buffers(STEPS[-1], geometry, CPU, torch.float32)
        self.graphs = FakeGraphs(FakeTower(geometry), buffers, device.stream())
        self.asked: list[Step] = []
        ladder = GraphLadder(self.graphs, STEPS, 0, captures_all=False)  # type: ignore[arg-type]
        ladder.ask_for = self.asked.append  # type: ignore[assignment, method-assign]
        arenas = {"rows": self.truth.rows, "embeddings": self.truth.embeddings}
        mapped = {name: torch.from_numpy(arena.whole()) for name, arena in arenas.items()}
        self.runner = StreamRunner(self.graphs, ladder, mapped, device, True)  # type: ignore[arg-type]
        self.ladder = ladder
        self.pictures = [self._picture(seed) for seed in range(12)]
        self.rows = [self._rows(shown) for shown in self.pictures]
        self._right: dict[tuple[int, Output], bytes] = {}

    def _picture(self, seed: int) -> Picture:
        rng, side = random.Random(seed), self.geometry.merge_size
        height, width = self.geometry.fixed_grid or (side * rng.randint(1, 3), side * rng.randint(1, 4))
        made = picture(seed, height, width, self.geometry.row_bytes)
        made.rows[0, 0] = 0
        return made

    def _rows(self, shown: Picture) -> Block:
        block = self.truth.rows.allocate(shown.rows.nbytes)
        block.view[:] = shown.rows.reshape(-1)
        return block

    def tokens(self, i: int) -> int:
        return (self.pictures[i].rows.shape[0] + self.geometry.prefix_rows) // self.geometry.merge_area

    def right(self, i: int, wish: Output) -> bytes:
        """What this picture gives alone, in a plain runner."""
        if (i, wish) not in self._right:
            done, (block,) = self.truth.run([self.pictures[i]], 14, [wish])
            assert not done.failures
            self._right[i, wish] = block.view.tobytes()
        return self._right[i, wish]

    def submit(self, wanted: Sequence[tuple[int, Output]], budget: int) -> tuple[Running, list[Block]]:
        items, blocks = [], []
        for i, wish in wanted:
            shown, rows = self.pictures[i], self.rows[i].span
            empty = PackItem(rows, shown.height, shown.width, Span(0, 0), wish)
            blocks.append(self.truth.embeddings.allocate(embedding_bytes(empty, self.geometry)))
            blocks[-1].view[:] = 0xFF
            items.append(PackItem(rows, shown.height, shown.width, blocks[-1].span, wish))
        return self.runner.submit(RunPack(1, tuple(items), budget)), blocks

    def draw(self, rng: random.Random, wishes: Sequence[Output]) -> tuple[list[tuple[int, Output]], int]:
        """Pictures that fill some of a budget, or of none."""
        step = rng.choice(STEPS)
        wanted: list[tuple[int, Output]] = []
        left = step.tokens
        while len(wanted) < step.items and (not wanted or rng.random() < 0.8):
            i = rng.randrange(len(self.pictures))
            if self.tokens(i) > left:
                break
            wanted.append((i, rng.choice(wishes)))
            left -= self.tokens(i)
        return wanted, rng.choice([step.tokens, step.tokens, step.tokens, 0])


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """These tensors are too small to share among cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def rig(monkeypatch: pytest.MonkeyPatch, name: str, seed: int = 0) -> Rig:
    device = FakeDevice(random.Random(seed))
    install(device, monkeypatch)
    return Rig(GEOMETRIES[name], device)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", sorted(GEOMETRIES))
def test_any_order_that_the_device_may_take_gives_each_picture_its_own(
    monkeypatch: pytest.MonkeyPatch, name: str, seed: int
) -> None:
    made, rng = rig(monkeypatch, name, seed), random.Random(seed)
    under_way: deque[tuple[Running, list[Block], list[tuple[int, Output]]]] = deque()

    def check() -> None:
        running, blocks, wanted = under_way.popleft()
        assert not running.finish().failures
        for (i, wish), block in zip(wanted, blocks, strict=True):
            assert block.view.tobytes() == made.right(i, wish), (i, wish)

    # a conversion needs what lies before it done at once here, so most packs have none
    for round_ in range(100):
        wanted, budget = made.draw(rng, (ROWS, POOLED, HALVES) if round_ % 10 == 0 else (ROWS, POOLED))
        under_way.append((*made.submit(wanted, budget), wanted))
        for _ in range(rng.choice([0, 0, 1, 3, 10])):
            made.device.work()
        if len(under_way) == 2:
            check()
    while under_way:
        check()
    made.device.finish()


def test_an_all_pooled_pack_moves_no_token_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    made = rig(monkeypatch, "fixed")
    running, blocks = made.submit([(i, POOLED) for i in range(3)], 42)
    assert not running.finish().failures
    assert [block.view.tobytes() for block in blocks] == [made.right(i, POOLED) for i in range(3)]
    answers, staged = made.graphs.buffers.answers, made.runner.staging.answers
    for _, source, _ in made.device.copies:
        for tokens in (answers.tokens, staged.tokens):
            assert not 0 <= source - tokens.data_ptr() < tokens.nbytes
    results = [copy for copy in made.device.copies if copy[1] == staged.results_at]
    assert len(results) == 1, "pooled rows come to the host in one copy"


def test_a_pack_without_pooled_brings_only_peaks_to_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    made = rig(monkeypatch, "fixed")
    made.submit([(0, ROWS), (1, ROWS)], 42)[0].finish()
    staged = made.runner.staging.answers
    assert [size for _, source, size in made.device.copies if source == staged.results_at] == [4 * 28]


def test_items_side_by_side_travel_in_one_copy_each_way(monkeypatch: pytest.MonkeyPatch) -> None:
    made = rig(monkeypatch, "merging")
    items = [i for i in range(12) if made.tokens(i) <= 10][:4]
    first, last = made.rows[items[0]].span, made.rows[items[-1]].span
    assert items == list(range(items[0], items[0] + 4)), "their rows lie side by side"
    made.submit([(i, ROWS) for i in items], 42)[0].finish()
    whole = last.offset + last.length - first.offset
    arena = made.truth.rows.whole().ctypes.data
    assert [size for _, source, size in made.device.copies if source == arena + first.offset] == [whole]
    staged = made.runner.staging.answers
    tokens = sum(made.tokens(i) for i in items)
    assert [size for _, source, size in made.device.copies if source == staged.tokens_at] == [tokens * 64]


def test_a_pooled_row_that_is_not_finite_fails_its_item_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    made = rig(monkeypatch, "prefix")
    made.rows[1].view[0] = NAN_BYTE
    running, blocks = made.submit([(0, POOLED), (1, POOLED), (2, ROWS)], 42)
    assert running.finish().failures == ((1, "internal", "the embedding of this image is not finite in float32"),)
    assert blocks[0].view.tobytes() == made.right(0, POOLED) and blocks[2].view.tobytes() == made.right(2, ROWS)


def test_the_mode_is_told_and_graphs_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    made = rig(monkeypatch, "fixed")
    for budget, reason in ((42, "not_captured"), (0, "not_captured")):
        done = made.submit([(0, ROWS)], budget)[0].finish()
        assert (done.mode, done.reason) == ("eager", reason)
    assert made.asked == [STEPS[1]]
    made.graphs.captured.add(STEPS[1])
    done = made.submit([(0, ROWS)], 42)[0].finish()
    assert (done.mode, done.reason) == ("graph", "")


def test_a_pack_for_a_budget_that_was_dropped_takes_the_next_larger_or_runs_eager(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = rig(monkeypatch, "fixed")
    made.graphs.captured.update(STEPS)
    del made.ladder.steps[42]
    for wanted_mode in ("graph", "eager"):
        running, (block,) = made.submit([(0, ROWS)], 42)
        assert running.finish().mode == wanted_mode and block.view.tobytes() == made.right(0, ROWS)
        made.ladder.steps.pop(140, None)


def test_an_eager_pack_may_be_larger_than_the_ladder(monkeypatch: pytest.MonkeyPatch) -> None:
    made = rig(monkeypatch, "fixed")
    wanted = [(i % 12, wish) for i, wish in enumerate([ROWS, POOLED] * 12)]
    running, blocks = made.submit(wanted, 0)
    assert not running.finish().failures
    assert [block.view.tobytes() for block in blocks] == [made.right(i, wish) for i, wish in wanted]
    running, blocks = made.submit(wanted[:4], 140)
    running.finish()
    assert [block.view.tobytes() for block in blocks] == [made.right(i, wish) for i, wish in wanted[:4]]


def test_a_bad_pack_is_refused_before_anything_is_issued(monkeypatch: pytest.MonkeyPatch) -> None:
    made = rig(monkeypatch, "fixed")
    for count, budget in ((2, 14), (0, 14), (1, 15)):
        with pytest.raises(BadPack):
            made.submit([(0, ROWS)] * count, budget)
    assert not made.device.copies and not any(stream.queue for stream in made.device.streams)


def test_early_columns_leave_before_the_run_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    made = rig(monkeypatch, "early")
    _, (block,) = made.submit([(0, ROWS)], 42)
    while made.graphs.early.done == 0:
        made.device.work()
    made.graphs.stream.queue.clear()  # whatever of the run comes after its early columns never happens
    while made.device.work():
        pass
    rows = block.view.view(np.float32).reshape(-1, 16)
    assert rows[:, 4:].tobytes() == np.frombuffer(made.right(0, ROWS), np.float32).reshape(-1, 16)[:, 4:].tobytes()
    assert np.isnan(rows[:, :4]).all()
