"""Many pictures at once, each its own request: the server packs them together.

Run: python examples/async_client.py PICTURE [PICTURE ...]
"""

import asyncio
import sys

from foveal_client import AsyncClient, Embedding, FovealError


async def encode(client: AsyncClient, path: str, places: asyncio.Semaphore) -> Embedding | FovealError:
    """One picture; a bad one does not stop the others."""
    async with places:
        try:
            return await client.encode(path, timeout=30)
        except FovealError as error:
            return error


async def main() -> None:
    """Encode all arguments, at most 16 at once."""
    places = asyncio.Semaphore(16)
    async with AsyncClient() as client:
        results = await asyncio.gather(*(encode(client, path, places) for path in sys.argv[1:]))
    for path, result in zip(sys.argv[1:], results, strict=True):
        print(path, f"{result.tokens} tokens" if isinstance(result, Embedding) else result)


asyncio.run(main())
