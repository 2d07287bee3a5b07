"""All images of one request: what came as bytes stays, what came as URL is fetched."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import httpx

from foveal.errors import FovealError
from foveal.fetch.body import Allowance
from foveal.fetch.fetcher import Fetcher

MAX_URLS_AT_ONCE = 16
"""Of one request; the others wait behind them."""

Source = bytes | httpx.URL
"""An image as sent: its bytes, or where they are."""


async def fetch_images(
    sources: Sequence[Source], param: str, fetcher: Fetcher | None, allowance: Allowance
) -> list[bytes]:
    """The images in order. The first that fails ends the other fetches, and is named; raises what `fetch` raises."""
    images = {i: source for i, source in enumerate(sources) if isinstance(source, bytes)}
    urls = {i: source for i, source in enumerate(sources) if isinstance(source, httpx.URL)}
    if not urls:
        return list(images.values())
    assert fetcher is not None, "a URL was taken though none is fetched: this is a bug"
    seats = asyncio.Semaphore(MAX_URLS_AT_ONCE)
    tasks = [asyncio.create_task(_one(f"{param}[{i}]", url, fetcher, allowance, seats)) for i, url in urls.items()]
    try:
        images |= zip(urls, await asyncio.gather(*tasks), strict=True)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        del tasks  # no cycle with an error's traceback: what it holds is free at once
    return [images[i] for i in range(len(sources))]


async def _one(param: str, url: httpx.URL, fetcher: Fetcher, allowance: Allowance, seats: asyncio.Semaphore) -> bytes:
    try:
        async with seats:
            return await fetcher.fetch(url, allowance)
    except FovealError as error:
        raise error.at(param) from None
