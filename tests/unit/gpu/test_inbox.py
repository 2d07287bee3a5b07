"""The worker's inbox: packs in order, and a look for the one that nobody wants any more."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import cast

import pytest

from foveal.gpu.inbox import Inbox, PackAbandoned
from foveal.ipc.channel import Channel
from foveal.ipc.messages import GiveUp, RunPack, ToWorker


@pytest.fixture
def ends() -> Iterator[tuple[Channel[ToWorker], Inbox, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        kind = cast(type[ToWorker], ToWorker)
        yield Channel(ours, kind), Inbox(Channel(theirs, kind)), ours


def test_what_is_said_of_the_pack_under_way_ends_it(ends: tuple[Channel[ToWorker], Inbox, socket.socket]) -> None:
    parent, inbox, _ = ends
    parent.send(RunPack(1, (), 0))
    assert inbox.next() == RunPack(1, (), 0)
    inbox.check()
    parent.send(RunPack(2, (), 0))
    inbox.check()
    parent.send(GiveUp(1))
    for _ in range(2):
        with pytest.raises(PackAbandoned):
            inbox.check()
    assert inbox.has_message() and inbox.next() == RunPack(2, (), 0)
    inbox.check()


def test_what_crossed_a_packs_answer_ends_no_other(ends: tuple[Channel[ToWorker], Inbox, socket.socket]) -> None:
    parent, inbox, _ = ends
    for message in (RunPack(1, (), 0), RunPack(2, (), 0), GiveUp(1)):
        parent.send(message)
    assert inbox.next() == RunPack(1, (), 0)
    assert inbox.next() == RunPack(2, (), 0)
    inbox.check()


def test_the_end_of_the_socket_is_told_once_and_ends_no_pack(
    ends: tuple[Channel[ToWorker], Inbox, socket.socket],
) -> None:
    parent, inbox, ours = ends
    parent.send(RunPack(1, (), 0))
    assert inbox.next() == RunPack(1, (), 0)
    ours.shutdown(socket.SHUT_WR)
    inbox.check()
    inbox.check()
    assert inbox.next() is None
