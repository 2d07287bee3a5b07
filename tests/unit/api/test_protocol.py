"""What a response writes to: the same bytes in the same order, a short answer in one piece."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from foveal.api.protocol import MAX_JOINED_BYTES, HeadWithBody


class Written:
    """A transport that remembers its writes."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.is_closed = False

    def write(self, data: bytes) -> None:
        assert not self.is_closed
        self.parts.append(data)

    def close(self) -> None:
        self.is_closed = True

    def is_closing(self) -> bool:
        return self.is_closed


@pytest.fixture
async def pair() -> tuple[Written, HeadWithBody]:
    written = Written()
    return written, HeadWithBody(cast(asyncio.Transport, written), asyncio.get_running_loop())


async def test_a_short_answer_is_one_write(pair: tuple[Written, HeadWithBody]) -> None:
    written, response = pair
    for part in (b"head", b"body", b"more"):
        response.write(part)
    assert written.parts == [b"headbody", b"more"]


async def test_a_large_body_is_not_copied_behind_its_head(pair: tuple[Written, HeadWithBody]) -> None:
    written, response = pair
    body = bytes(MAX_JOINED_BYTES + 1)
    response.write(b"head")
    response.write(body)
    assert written.parts == [b"head", body] and written.parts[1] is body


async def test_a_head_whose_body_is_late_goes_alone(pair: tuple[Written, HeadWithBody]) -> None:
    written, response = pair
    response.write(b"head")
    assert not written.parts
    await asyncio.sleep(0)
    assert written.parts == [b"head"]
    response.write(b"body")
    await asyncio.sleep(0)
    assert written.parts == [b"head", b"body"]


async def test_closing_writes_what_waits_and_a_closed_connection_gets_nothing(
    pair: tuple[Written, HeadWithBody],
) -> None:
    written, response = pair
    response.write(b"head")
    response.close()
    assert written.parts == [b"head"] and response.is_closing()
    late = HeadWithBody(cast(asyncio.Transport, written), asyncio.get_running_loop())
    late.write(b"head")
    await asyncio.sleep(0)
    assert written.parts == [b"head"]
