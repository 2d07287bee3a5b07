"""A tiny HTTP server in a thread, whose answers a test writes."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Iterator

Answerer = Callable[[str, bytes], Awaitable[bytes]]
"""Path and body → the whole answer; no bytes close the connection."""


def answer(body: bytes = b"ok", status: int = 200, *headers: str) -> bytes:
    head = [f"HTTP/1.1 {status} Any", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + body


@contextlib.contextmanager
def scripted(answerer: Answerer) -> Iterator[str]:
    """The URL of a server for as long as the `with` lasts."""
    ready = threading.Event()
    told: list[tuple[int, Callable[[], object]]] = []

    async def serve() -> None:
        stop, loop, open_now = asyncio.Event(), asyncio.get_running_loop(), set[asyncio.Task[None]]()

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            open_now.add(task)
            try:
                await _converse(reader, writer, answerer)
            finally:
                writer.close()
                open_now.discard(task)

        async with await asyncio.start_server(connected, "127.0.0.1", 0) as server:
            told.append((server.sockets[0].getsockname()[1], lambda: loop.call_soon_threadsafe(stop.set)))
            ready.set()
            await stop.wait()
            for task in list(open_now):
                task.cancel()
            await asyncio.gather(*open_now, return_exceptions=True)

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    ready.wait()
    port, stop = told[0]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        stop()
        thread.join()


async def _converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answerer: Answerer) -> None:
    """One connection, until the caller leaves or the script says nothing."""
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            fields = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if line)
            body = await reader.readexactly(int(fields.get("content-length", 0)))
            written = await answerer(head.split()[1], body)
            if not written:
                return
            writer.write(written)
            await writer.drain()
