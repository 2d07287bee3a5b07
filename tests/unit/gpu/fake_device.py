"""A device that does its work as late, and in as strange an order, as streams and events allow.

Work is queued on streams and done only when somebody waits for an event, one entry at a time, from a stream that is
drawn. So what the order of a program does not enforce will, sooner or later, happen the wrong way round.
"""

from __future__ import annotations

import contextlib
import ctypes
import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import pytest
import torch

from foveal.gpu.buffers import Buffers
from foveal.gpu.executable import encode
from foveal.gpu.layout import Step
from foveal.gpu.towers.protocol import Tower


class FakeDevice:
    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.streams: list[FakeStream] = []
        self.copies: list[tuple[int, int, int]] = []
        self.is_prompt = False

    def stream(self, device: object = None) -> FakeStream:
        self.streams.append(FakeStream(len(self.streams)))
        return self.streams[-1]

    def event(self, enable_timing: bool = False) -> FakeEvent:
        return FakeEvent(self)

    def __call__(self, target: int, source: int, num_bytes: int, stream: int) -> None:
        self._issue(stream, [(target, source, num_bytes)])

    def columns(self, target: int, source: int, width: int, pitch: int, rows: int, stream: int) -> None:
        self._issue(stream, [(target + row * pitch, source + row * pitch, width) for row in range(rows)])

    def _issue(self, stream: int, copies: Sequence[tuple[int, int, int]]) -> None:
        self.copies += copies
        self.streams[stream].queue += [partial(ctypes.memmove, *copy) for copy in copies]
        if self.is_prompt:
            self.finish()

    def work(self) -> bool:
        """Do one entry of one stream; False if there is none."""
        able = [stream for stream in self.streams if stream.is_able]
        if able:
            self.rng.choice(able).advance()
        return bool(able)

    def finish(self) -> None:
        while self.work():
            pass
        assert not any(stream.queue for stream in self.streams), "streams wait for each other for ever"

    @contextlib.contextmanager
    def current(self, stream: FakeStream) -> Iterator[None]:
        """Tensor operations are done at once here, so what they may need is done before, and copies of them too."""
        self.finish()
        self.is_prompt = True
        yield
        self.is_prompt = False


class FakeStream:
    def __init__(self, number: int) -> None:
        self.cuda_stream = number
        self.queue: deque[Callable[[], object] | tuple[FakeEvent, int]] = deque()

    def wait_event(self, event: FakeEvent) -> None:
        self.queue.append((event, event.recorded))

    @property
    def is_able(self) -> bool:
        if not self.queue:
            return False
        first = self.queue[0]
        return not isinstance(first, tuple) or first[0].done >= first[1]

    def advance(self) -> None:
        first = self.queue.popleft()
        if not isinstance(first, tuple):
            first()


class FakeEvent:
    def __init__(self, device: FakeDevice) -> None:
        self.device, self.recorded, self.done = device, 0, 0

    def record(self, stream: FakeStream) -> None:
        self.recorded += 1
        stream.queue.append(partial(setattr, self, "done", self.recorded))

    def synchronize(self) -> None:
        while self.done < self.recorded:
            assert self.device.work(), "this event never comes"

    def elapsed_time(self, end: FakeEvent) -> float:
        assert self.done and end.done
        return 1.0


class FakeEarly:
    """An event that runs record themselves, in the order in which they were launched."""

    def __init__(self) -> None:
        self.recorded, self.done = 0, 0

    def record(self) -> None:
        self.done += 1


class FakeGraphs:
    """Queues the forward on its stream, as a replay would be."""

    def __init__(self, tower: Tower, buffers: Buffers, stream: FakeStream) -> None:
        self.tower, self.buffers, self.stream = tower, buffers, stream
        self.early = FakeEarly()
        if tower.geometry.early_width:
            buffers.early = self.early  # type: ignore[assignment]
        self.captured: set[Step] = set()

    def __contains__(self, step: Step) -> bool:
        return step in self.captured

    def run(self, step: Step) -> None:
        self.early.recorded += 1
        self.stream.queue.append(partial(encode, self.tower, self.buffers, step))


def install(device: FakeDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Stream", device.stream)
    monkeypatch.setattr(torch.cuda, "Event", device.event)
    monkeypatch.setattr(torch.cuda, "stream", device.current)
    monkeypatch.setattr(torch.cuda, "set_stream", lambda stream: None)
