"""No test ends with a connection of its own open."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.chaos.wire import all_leave


@pytest.fixture(autouse=True)
async def _hang_up() -> AsyncIterator[None]:
    yield
    await all_leave()
