"""Messages arrive as they were sent; a closed socket is the end; nonsense is noticed."""

from __future__ import annotations

import socket
import struct

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveal.ipc.channel import MAX_MESSAGE_BYTES, AsyncChannel, Channel
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


async def test_the_loops_end_speaks_the_same() -> None:
    ours, theirs = socket.socketpair()
    channel: AsyncChannel[Probe, object] = await AsyncChannel.over(ours, FromWorker)  # type: ignore[arg-type]
    child = Channel(theirs, ToPrep)
    channel.send(Probe(1, Span(0, 5), 100))
    assert child.receive() == Probe(1, Span(0, 5), 100)
    for message in (
        Progress("loading"),
        PackDone(3, "static", 0.1, 0.2, 0.3, ((0, "internal", "why"),)),
        PackFailed(4, "x", True),
    ):
        child.send(message)
        assert await channel.receive() == message
    theirs.close()
    assert await channel.receive() is None
    channel.close()


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
