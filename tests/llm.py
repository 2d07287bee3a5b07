"""A fake LLM server on raw sockets: records what it is sent, answers as a test says, and breaks as a test says."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

Writer = asyncio.StreamWriter


@dataclass
class Sent:
    """A request as it came."""

    line: str
    headers: dict[str, str]
    body: bytes
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when who sent it has closed the connection."""

    @property
    def json(self) -> Any:
        return json.loads(self.body)


Answer = Callable[[Sent, Writer], Awaitable[None]]


def head(status: int = 200, *lines: str) -> bytes:
    return "\r\n".join([f"HTTP/1.1 {status} Whatever", *lines, "", ""]).encode()


def whole(body: bytes, status: int = 200, *lines: str) -> bytes:
    return head(status, f"Content-Length: {len(body)}", "Content-Type: application/json", *lines) + body


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


STREAM_HEAD = head(200, "Content-Type: text/event-stream; charset=utf-8", "Transfer-Encoding: chunked")


async def says_hello(sent: Sent, writer: Writer) -> None:
    writer.write(whole(b'{"choices":[{"message":{"content":"hello"}}]}'))


async def serves_tiny(sent: Sent, writer: Writer) -> None:
    """As vLLM lists a model, under a name of its operator's."""
    writer.write(listing({"id": "llm", "root": "builtin:tiny"}))


def listing(*entries: dict[str, Any]) -> bytes:
    return whole(json.dumps({"object": "list", "data": [{"object": "model", **entry} for entry in entries]}).encode())


class FakeLlm:
    """One server. `answer` is called with each request that has been read whole, unless `reads` is False.

    What the gateway asks for itself is answered by `look`, and is none of `requests`.
    """

    def __init__(self, answer: Answer = says_hello) -> None:
        self.answer = answer
        self.reads = True
        self.look: Answer = serves_tiny
        self.looks: list[Sent] = []
        self.requests: list[Sent] = []
        self.num_open = 0
        self.port = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Die: no connection is ended in order."""
        assert self._server is not None
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def until_sent(self, count: int = 1) -> Sent:
        while len(self.requests) < count:
            await asyncio.sleep(0)
        return self.requests[count - 1]

    async def _serve(self, reader: asyncio.StreamReader, writer: Writer) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.num_open += 1
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                await self._one(reader, writer)
        finally:
            self.num_open -= 1
            self._tasks.discard(task)
            writer.transport.abort()

    async def _one(self, reader: asyncio.StreamReader, writer: Writer) -> None:
        line, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")[:-2]
        headers = {name.lower(): value for name, _, value in (one.partition(": ") for one in lines)}
        body = await reader.readexactly(int(headers.get("content-length", 0))) if self.reads else b""
        sent = Sent(line, headers, body)
        is_look = headers.get("user-agent") == "foveal"
        (self.looks if is_look else self.requests).append(sent)
        watcher = asyncio.create_task(self._watch(reader, sent)) if self.reads else None
        try:
            await (self.look if is_look else self.answer)(sent, writer)
            await writer.drain()
            writer.write_eof()
            await sent.gone.wait()
        finally:
            if watcher is not None:
                watcher.cancel()

    async def _watch(self, reader: asyncio.StreamReader, sent: Sent) -> None:
        with contextlib.suppress(ConnectionError):
            await reader.read()
        sent.gone.set()


@contextlib.asynccontextmanager
async def fake_llm(answer: Answer = says_hello) -> AsyncIterator[FakeLlm]:
    llm = FakeLlm(answer)
    await llm.start()
    try:
        yield llm
    finally:
        await llm.stop()
