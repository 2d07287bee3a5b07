"""Several servers on one folder, and a disk that is full: no promise is broken, and no room is left to what is over."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foveal.errors import FovealError, Overloaded
from foveal.handover import folder as files
from foveal.handover.ec_file import Buffer
from tests.unit.handover.holding import FakeClock
from tests.unit.handover.shelf import KEPT, PROMISED, Shelf, keys_of


@pytest.fixture
def hasty(shelf: Shelf, tmp_path: Path) -> Shelf:
    """Another server on the same folder, with shorter limits."""
    return Shelf(tmp_path, max_files=1, seconds=10, promised_seconds=5, clock=shelf.clock)


@pytest.mark.parametrize("comes_first", ["hasty", "shelf"])
async def test_a_server_with_shorter_limits_keeps_the_promise_of_another(
    shelf: Shelf, hasty: Shelf, comes_first: str
) -> None:
    for server in (hasty, shelf) if comes_first == "hasty" else (shelf, hasty):
        await server.publish("a")
    shelf.clock.now += PROMISED - 1
    await hasty.storage.clean()
    with pytest.raises(Overloaded):
        await hasty.publish("b")
    assert shelf.path("a").exists()
    shelf.clock.now += 1
    await hasty.publish("b")
    assert hasty.names() == keys_of("b")


async def test_a_promise_of_another_server_outlives_that_server_in_one_that_starts(shelf: Shelf, hasty: Shelf) -> None:
    await shelf.publish("a")
    await hasty.storage.open()
    shelf.clock.now += PROMISED - 1
    await hasty.storage.clean()
    assert shelf.path("a").exists()


async def test_a_server_alone_removes_by_its_own_seconds(hasty: Shelf) -> None:
    await hasty.publish("a")
    hasty.clock.now += 9
    await hasty.storage.clean()
    assert hasty.path("a").exists()
    hasty.clock.now += 1
    await hasty.storage.clean()
    assert not hasty.path("a").exists()


@settings(max_examples=40, deadline=None)
@given(steps=st.lists(st.tuples(st.sampled_from([0, 1]), st.sampled_from("abc"), st.integers(0, 60)), max_size=20))
async def test_whatever_two_servers_do_what_was_promised_is_there(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, str, int]]
) -> None:
    folder, clock = tmp_path_factory.mktemp("ec"), FakeClock()
    servers = [Shelf(folder, 2, 300, 100, clock), Shelf(folder, 1, 10, 5, clock)]
    promised: dict[str, float] = {}
    for which, name, seconds in steps:
        try:
            await servers[which].publish(name)
        except FovealError:
            pass  # refused: nothing was promised
        else:
            promised[name] = max(promised.get(name, 0.0), clock.now + (100, 5)[which])
        clock.now += seconds
        for server in servers:
            await server.storage.clean()
        assert keys_of("".join(name for name, until in promised.items() if until > clock.now)) <= servers[0].names()


async def test_a_file_is_not_renewed_between_a_look_at_it_and_its_removal(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two servers' threads: one is about to remove what is over, the other renews it."""
    await shelf.publish("a")
    file = shelf.storage._files[next(iter(keys_of("a")))]
    name, until = next(iter(keys_of("a"))), shelf.clock.now + 10 * KEPT
    outcome: list[object] = []
    renewing = threading.Thread(target=lambda: outcome.append(files.renew(shelf.folder, name, file, until)))
    real = os.unlink

    def looked_at(*args: object, **keywords: object) -> None:
        renewing.start()
        renewing.join(0.05)  # were there no turns, it would be done by now
        assert renewing.is_alive()
        real(*args, **keywords)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "unlink", looked_at)
    assert files.remove(shelf.folder, name, file) is None
    renewing.join()
    assert outcome == [None]  # so its server writes it anew


class Disk:
    """Has room for so many files."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, shelf: Shelf, num_files: int) -> None:
        self._shelf, self._num_files, self._real = shelf, num_files, files.write
        monkeypatch.setattr(files, "write", self.write)

    def write(self, folder: Path, name: str, key: str, buffers: Sequence[Buffer], until: float) -> files.Published:
        if len(self._shelf.names()) >= self._num_files:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self._real(folder, name, key, buffers, until)


async def test_a_full_disk_is_given_what_is_over_before_a_request_is_refused(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    Disk(monkeypatch, shelf, 2)
    for name in "ab":
        await shelf.publish(name)
        shelf.clock.now += 10
    with pytest.raises(Overloaded, match="disk"):
        await shelf.publish("c")
    assert shelf.names() == keys_of("ab")
    shelf.clock.now += PROMISED - 20
    await shelf.publish("c")
    assert shelf.names() == keys_of("bc") and shelf.storage.shown()["entries"] == 2
