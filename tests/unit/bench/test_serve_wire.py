"""Large answers are counted, not parsed, and still end where their length says."""

from __future__ import annotations

import asyncio

from foveal.bench.serve.payloads import Target
from foveal.bench.serve.wire import READ_BYTES, Answer, Pool, _Connection
from tests.unit.bench.scripted import Answerer, answer, scripted

LARGE = 3 * READ_BYTES + 17


def asked(answerer: Answerer, times: int = 2) -> list[Answer]:
    async def ask(url: str) -> list[Answer]:
        pool = Pool(Target(url, timeout_seconds=20), 1)
        try:
            return [await pool.ask(b"POST /encode HTTP/1.1\r\nContent-Length: 0\r\n\r\n") for _ in range(times)]
        finally:
            pool.close()

    with scripted(answerer) as url:
        return asyncio.run(ask(url))


def test_answers_larger_than_a_read_are_counted_to_the_last_byte_on_one_connection() -> None:
    sizes = iter((LARGE, 0, 5, LARGE))

    async def answerer(path: str, body: bytes) -> bytes:
        return answer(b"\r\n" * (next(sizes) // 2) + b"x", 200, "Server-Timing: total;dur=3")

    found = asked(answerer, 4)
    assert [(a.code, a.num_bytes, a.stages) for a in found] == [
        ("ok", size // 2 * 2 + 1, {"total": 3.0}) for size in (LARGE, 0, 5, LARGE)
    ]


def test_the_code_of_a_large_refusal_is_read() -> None:
    async def answerer(path: str, body: bytes) -> bytes:
        return answer(b'{"error": {"code": "overloaded"}}' + b" " * 50_000, 503)

    assert [a.code for a in asked(answerer)] == ["overloaded"] * 2


def test_an_answer_without_a_length_goes_through_the_parser() -> None:
    async def answerer(path: str, body: bytes) -> bytes:
        chunk = b"%x\r\n%s\r\n" % (LARGE, b"y" * LARGE)
        return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk + b"0\r\n\r\n"

    assert [(a.code, a.num_bytes) for a in asked(answerer)] == [("ok", LARGE)] * 2


class Wire(asyncio.Transport):
    """Takes what is written to it."""

    is_aborted = False

    def write(self, data: object) -> None:
        pass

    def abort(self) -> None:
        self.is_aborted = True


async def test_bytes_beyond_the_length_are_no_answer_and_end_the_connection() -> None:
    pool = Pool(Target("http://127.0.0.1:1"), 1)
    wire, connection = Wire(), _Connection(pool)
    connection.connection_made(wire)
    waiter = connection.ask(b"")
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n123"
    pool.memory[: len(head)] = head
    connection.buffer_updated(len(head))
    connection.buffer_updated(6)
    assert not waiter.done()
    connection.buffer_updated(2)
    assert (await waiter).code == "not_http" and wire.is_aborted and not connection.is_open
