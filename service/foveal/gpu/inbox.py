"""`Inbox`: the parent's messages in order, with a look ahead for the one that ends the pack under way."""

from __future__ import annotations

from collections import deque

from foveal.ipc.channel import Channel
from foveal.ipc.messages import Configure, GiveUp, RunPack, ToWorker


class PackAbandoned(Exception):
    """Nobody waits any more for the pack that runs. Raised between two parts of its forward."""


class Inbox:
    """Used by the main thread alone."""

    def __init__(self, channel: Channel[ToWorker]) -> None:
        self._channel = channel
        self._waiting: deque[Configure | RunPack | None] = deque()
        self._under_way = 0
        self._is_given_up = self._is_ended = False

    def has_message(self) -> bool:
        """True if `next` would not wait for long."""
        return bool(self._waiting) or self._channel.has_message()

    def next(self) -> Configure | RunPack | None:
        """The next pack, now under way, or None when the parent is gone."""
        while not self._waiting:
            self._take_one()
        message = self._waiting.popleft()
        if isinstance(message, RunPack):
            self._under_way, self._is_given_up = message.id, False
        return message

    def check(self) -> None:
        """Raise PackAbandoned when the parent has said so of the pack under way."""
        while not self._is_ended and self._channel.has_message():
            self._take_one()
        if self._is_given_up:
            raise PackAbandoned

    def _take_one(self) -> None:
        message = self._channel.receive()
        if isinstance(message, GiveUp):
            self._is_given_up |= message.id == self._under_way  # else it crossed the pack's answer
        else:
            self._is_ended = message is None  # at its end a socket always has something to receive
            self._waiting.append(message)
