"""Pictures that are too large for a CPU: what they cost callers of small ones. With the real worker."""

from __future__ import annotations

import asyncio
import io
from collections import Counter
from dataclasses import dataclass, field

from PIL import Image

from tests.chaos.pictures import marked
from tests.chaos.wire import Caller, Reply
from tests.system.conftest import Running
from tests.system.test_encode import noise

FLAGS = (
    *("--cpu-workers", "1", "--prep-workers", "2", "--max-queue-tokens", "32768"),
    *("--api-key", "bulk", "--api-key", "single"),
)
SINGLE, BULK = "Authorization: Bearer single", "Authorization: Bearer bulk"
CROWD = 24


@dataclass
class Large:
    """What was seen."""

    alone: Reply
    """A large one on an idle server."""
    behind: Reply
    """A small one behind a large one, whose caller waits on."""
    left: Reply
    """A small one behind a large one, whose caller leaves a second later."""
    flood: Counter[str] = field(default_factory=Counter)
    beside: Counter[str] = field(default_factory=Counter)
    """Small ones of another caller, sent a second after the flood of large ones began."""
    after: Counter[str] = field(default_factory=Counter)
    """The same when the last of the flood was answered."""
    slowest: float = 0.0
    """Seconds of the last right answer to a small one."""


def large_picture(side: int) -> bytes:
    """A plain PNG of that side: small to send, quick to decode."""
    sink = io.BytesIO()
    Image.new("RGB", (side, side), (90, 120, 150)).save(sink, "PNG", compress_level=1)
    return sink.getvalue()


async def large(running: Running, side: int) -> Large:
    """Large ones alone, before small ones, and 24 at once."""
    picture, small = large_picture(side), noise(256, 256, 1)
    bulk, single = Caller(running.url, BULK), Caller(running.url, SINGLE)
    assert (await single.encode(small)).status == 200
    alone = await bulk.encode(marked(picture, 1))
    found = Large(alone, await _behind(running, picture, small, 2), await _behind(running, picture, small, 3, 1.0))
    flood = [asyncio.create_task(Caller(running.url, BULK).encode(marked(picture, 10 + i))) for i in range(CROWD)]
    await asyncio.sleep(1.0)
    beside = await _crowd(running, small, 100)
    found.flood, found.beside = _seen(await asyncio.gather(*flood)), _seen(beside)
    after = await _crowd(running, small, 200)
    found.after = _seen(after)
    found.slowest = max((r.seconds for r in (*beside, *after) if r.status == 200), default=0.0)
    return found


async def _crowd(running: Running, small: bytes, first: int) -> list[Reply]:
    calls = (Caller(running.url, SINGLE).encode(marked(small, first + i)) for i in range(CROWD))
    return list(await asyncio.gather(*calls))


async def _behind(
    running: Running, picture: bytes, small: bytes, number: int, leave_after: float | None = None
) -> Reply:
    """A small one's answer, sent when a worker has the large one in hand."""
    leaves = None if leave_after is None else leave_after + 1.0
    large = asyncio.create_task(Caller(running.url, BULK).encode(marked(picture, number), leave_after=leaves))
    await asyncio.sleep(1.0)  # read, decoded and taken by the worker: nothing else is there
    reply = await Caller(running.url, SINGLE).encode(marked(small, number))
    await large
    return reply


def _seen(replies: list[Reply]) -> Counter[str]:
    return Counter(reply.code or str(reply.status) for reply in replies)
