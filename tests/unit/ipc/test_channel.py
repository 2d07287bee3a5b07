"""Messages arrive as they were sent; a closed socket is the end; nonsense is noticed."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
import struct
from collections.abc import AsyncIterator

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveal.ipc.channel import MAX_MESSAGE_BYTES, AsyncChannel, Channel, Frames
from foveal.ipc.messages import FromWorker, PackDone, PackFailed, Prepare, Probe, Progress, Span, ToPrep
from foveal.types import PixelPlan

numbers = st.integers(0, 2**40)
spans = st.builds(Span, numbers, numbers)
messages = st.one_of(
    st.builds(Probe, numbers, spans, numbers),
    st.builds(
        Prepare,
        numbers,
        spans,
        spans,
        st.builds(PixelPlan, numbers, numbers, st.integers(1, 32), st.integers(1, 4)),
        st.tuples(*[st.integers(0, 255)] * 3),
        numbers,
    ),
)


@given(st.lists(messages, max_size=5))
def test_messages_arrive_as_they_were_sent(sent: list[Probe | Prepare]) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        writer, reader = Channel(ours, ToPrep), Channel(theirs, ToPrep)
        for message in sent:
            writer.send(message)
        ours.shutdown(socket.SHUT_WR)
        received = []
        while (message := reader.receive()) is not None:
            received.append(message)
    assert received == sent


ANSWERS = (
    Progress("loading"),
    PackDone(3, "static", 0.1, 0.2, 0.3, ((0, "internal", "why"),)),
    PackFailed(4, "x", True),
)


class Parent:
    """The loop's end, and what it was told."""

    def __init__(self, fails: bool) -> None:
        self.told: list[object] = []
        self.news = asyncio.Event()
        self.fails = fails
        ours, self.child = socket.socketpair()
        self.channel: AsyncChannel[Probe, object] = AsyncChannel(FromWorker, self.opened, self.received)  # type: ignore[arg-type]
        self.run = asyncio.create_task(self.channel.run(ours))

    def opened(self) -> None:
        self.told.append("opened")

    def received(self, message: object) -> None:
        self.told.append(message)
        self.news.set()
        if self.fails:
            raise ValueError("a bug")


@contextlib.asynccontextmanager
async def parent_of(*, fails: bool = False) -> AsyncIterator[Parent]:
    parent = Parent(fails)
    with parent.child:
        yield parent
        parent.channel.close()
        await asyncio.gather(parent.run, return_exceptions=True)


async def test_the_loops_end_speaks_the_same() -> None:
    async with parent_of() as parent:
        child = Channel(parent.child, ToPrep)
        for message in ANSWERS:
            child.send(message)
        await parent.news.wait()
        parent.channel.send(Probe(1, Span(0, 5), 100))
        assert child.receive() == Probe(1, Span(0, 5), 100)
        parent.child.close()
        await parent.run
        assert parent.told == ["opened", *ANSWERS]


async def test_what_the_told_one_raises_ends_the_channel_and_nothing_more_is_told() -> None:
    async with parent_of(fails=True) as parent:
        child = Channel(parent.child, ToPrep)
        for message in ANSWERS:
            child.send(message)
        with pytest.raises(ValueError, match="a bug"):
            await parent.run
        assert parent.told == ["opened", ANSWERS[0]]
        assert child.receive() is None


async def test_a_channel_that_the_parent_closes_ends_on_both_sides() -> None:
    async with parent_of() as parent:
        child = Channel(parent.child, ToPrep)
        child.send(ANSWERS[0])
        await parent.news.wait()
        parent.channel.close()
        await parent.run
        assert child.receive() is None


@given(st.lists(st.binary(max_size=40), max_size=6), st.data())
def test_frames_come_whole_however_they_are_cut(bodies: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(struct.pack("<I", len(body)) + body for body in bodies)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    pieces = [stream[a:b] for a, b in itertools.pairwise([0, *cuts, len(stream)])]
    frames = Frames()
    assert [bytes(frame) for piece in pieces for frame in frames.feed(piece)] == bodies


def test_a_message_that_is_not_expected_is_an_error() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        Channel(ours, ToPrep).send(Progress("to the wrong side"))
        with pytest.raises(msgspec.ValidationError):
            Channel(theirs, ToPrep).receive()


def test_an_absurd_length_is_an_error_and_half_a_message_is_the_end() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        ours.sendall(struct.pack("<I", MAX_MESSAGE_BYTES + 1))
        with pytest.raises(ConnectionError):
            Channel(theirs, ToPrep).receive()
        ours.sendall(struct.pack("<I", 100) + b"half")
        ours.close()
        assert Channel(theirs, ToPrep).receive() is None
