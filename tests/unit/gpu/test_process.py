"""The worker program on its socket: what it says, what it survives, how it ends."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from foveal.gpu.worker import serve
from foveal.ipc.arena import Arena
from foveal.ipc.channel import Channel
from foveal.ipc.messages import (
    Configure,
    FromWorker,
    GiveUp,
    LadderChanged,
    PackDone,
    PackFailed,
    PackGivenUp,
    PackItem,
    Progress,
    RunPack,
    Span,
    StartFailed,
    ToWorker,
    WorkerReady,
)
from foveal.types import Output
from tests.unit.gpu.bench import picture

ROW_BYTES, WIDTH = 768, 192
BUDGETS = (16, 64, 256, 1024, 4096)


def configure(tiny: Path, /, **changes: object) -> Configure:
    told: dict[str, object] = {
        "folder": str(tiny),
        "load_format": "dummy",
        "device": "cpu",
        "dtype": "auto",
        "token_budgets": (16, 64),
        "max_items": 32,
        "threads": 0,
    }
    return Configure(**(told | changes))  # type: ignore[arg-type]


def answers(channel: Channel[FromWorker]) -> list[FromWorker]:
    return list(iter(channel.receive, None))


def hold(arenas: dict[str, Arena], seed: int) -> tuple[PackItem, Sequence[object], np.ndarray]:
    shown = picture(seed, 4, 6, ROW_BYTES)
    rows, block = arenas["rows"].allocate(shown.rows.nbytes), arenas["embeddings"].allocate(6 * WIDTH * 4)
    rows.view[:] = shown.rows.reshape(-1)
    item = PackItem(rows.span, 4, 6, block.span, Output("tokens", "float32"))
    return item, (rows, block), block.view.view(np.float32)


@pytest.fixture
def arenas() -> dict[str, Arena]:
    return {name: Arena(name, 1 << 20) for name in ("rows", "embeddings")}


def live(arenas: dict[str, Arena], messages: Sequence[ToWorker]) -> tuple[int, list[FromWorker]]:
    """A whole life in this process: everything is on the socket before it starts."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        channel = Channel(ours, cast(type[FromWorker], FromWorker))
        for message in messages:
            channel.send(message)
        ours.shutdown(socket.SHUT_WR)
        code = serve(Channel(theirs, cast(type[ToWorker], ToWorker)), dict(arenas))
        theirs.shutdown(socket.SHUT_WR)
        return code, answers(channel)


def test_the_program_starts_answers_survives_a_bad_pack_and_ends_with_its_socket(
    tiny: Path, arenas: dict[str, Arena]
) -> None:
    ours, theirs = socket.socketpair()
    fds = [theirs.fileno(), *(arena.fd for arena in arenas.values())]
    line = [sys.executable, "-m", "foveal.gpu", "--socket", str(fds[0]), "--rows", str(fds[1])]
    process = subprocess.Popen([*line, "--embeddings", str(fds[2])], pass_fds=fds, stderr=subprocess.PIPE)
    theirs.close()
    with ours, process:
        channel = Channel(ours, cast(type[FromWorker], FromWorker))
        channel.send(configure(tiny, token_budgets=BUDGETS, threads=2))
        assert [channel.receive(), channel.receive()] == [Progress("loading weights"), Progress("warming up")]
        ready = channel.receive()
        assert isinstance(ready, WorkerReady)
        assert (ready.device, ready.dtype, ready.attention) == ("cpu", "float32", "sdpa-loop")
        assert [(b.tokens, b.items) for b in ready.budgets] == [(16, 16), *((n, 32) for n in BUDGETS[1:])]
        assert all(b.milliseconds > 0 and b.bytes == 0 for b in ready.budgets)
        assert ready.weights_bytes > 100_000 and ready.buffers_bytes > 4096 * (4 * ROW_BYTES + 4 * WIDTH)

        costs = channel.receive()
        assert isinstance(costs, LadderChanged) and costs.budgets == ready.budgets and costs.ms_per_patch2 >= 0

        first, held, values = hold(arenas, 1)
        second, also, _ = hold(arenas, 2)
        channel.send(RunPack(1, (first, second), 16))
        done = channel.receive()
        assert isinstance(done, PackDone) and (done.id, done.mode, done.failures) == (1, "static", ())
        before = values.copy()
        assert np.isfinite(before).all() and before.std() > 0.1

        channel.send(RunPack(2, (first,), 17))
        failed = channel.receive()
        assert isinstance(failed, PackFailed) and (failed.id, failed.fatal) == (2, False)
        values[:] = 0
        channel.send(RunPack(3, (first,), 0, "oversize"))
        done = channel.receive()
        assert isinstance(done, PackDone) and done.mode == "eager"
        assert np.abs(values - before).max() < 2e-5
        del held, also
        ours.close()
        _, errors = process.communicate(timeout=20)
    assert process.returncode == 0
    assert b"BadPack" in errors and b"Warning" not in errors


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"load_format": "auto"}, "no model.safetensors"),
        ({"device": "cuda"}, "no CUDA device"),
        ({"folder": "/nowhere"}, "config.json is missing"),
    ],
    ids=["weights", "device", "folder"],
)
def test_a_configuration_that_cannot_work_is_said_and_ends_with_2(
    tiny: Path, arenas: dict[str, Arena], monkeypatch: pytest.MonkeyPatch, changes: dict[str, object], complaint: str
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    code, said = live(arenas, [configure(tiny, **changes)])
    assert code == 2 and isinstance(said[-1], StartFailed) and complaint in said[-1].message


def test_a_pack_that_raises_fails_alone(tiny: Path, arenas: dict[str, Arena]) -> None:
    good, held, values = hold(arenas, 1)
    other, also, _ = hold(arenas, 2)
    outside = PackItem(Span((1 << 20) - 8, other.rows.length), 4, 6, other.embedding, other.output)
    packs = [RunPack(1, (outside,), 16), RunPack(2, (good, other), 16), RunPack(3, (), 16), RunPack(4, (good,), 64)]
    code, said = live(arenas, [configure(tiny), *packs])
    assert code == 0
    assert [type(m) for m in said[4:]] == [PackFailed, PackDone, PackFailed, PackDone]
    assert [m.id for m in said[4:] if isinstance(m, PackDone | PackFailed)] == [1, 2, 3, 4]
    assert values.std() > 0.1
    del held, also


def test_a_pack_that_nobody_wants_is_left_within_a_block_and_the_next_runs(
    tiny: Path, arenas: dict[str, Arena]
) -> None:
    good, held, values = hold(arenas, 1)
    unwanted, also, untouched = hold(arenas, 2)
    packs = [RunPack(1, (unwanted,), 0), GiveUp(1), RunPack(2, (good,), 0), GiveUp(1), RunPack(3, (good,), 16)]
    code, said = live(arenas, [configure(tiny), *packs])
    assert code == 0
    assert said[4] == PackGivenUp(1)
    assert [m.id for m in said[5:] if isinstance(m, PackDone)] == [2, 3] and len(said) == 7
    assert values.std() > 0.1 and not untouched.any()
    del held, also


def test_what_a_large_picture_costs_is_told_before_it_comes(tiny: Path, arenas: dict[str, Arena]) -> None:
    _, said = live(arenas, [configure(tiny)])
    told = said[3]
    assert isinstance(told, LadderChanged) and told.least is not None
    assert told.ms_per_patch2 == told.least.ms_per_patch2 > 0


def test_a_parent_that_leaves_before_configuring_is_an_end(arenas: dict[str, Arena]) -> None:
    assert live(arenas, []) == (0, [])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_the_asked_compute_dtype_is_used(tiny: Path, arenas: dict[str, Arena], dtype: str) -> None:
    good, held, values = hold(arenas, 1)
    code, said = live(arenas, [configure(tiny, dtype=dtype), RunPack(1, (good,), 16)])
    assert code == 0 and isinstance(said[2], WorkerReady) and said[2].dtype == dtype
    assert values.std() > 0.1
    del held
