"""Bodies: counted as they arrive and after decompression, never read beyond what they may have."""

from __future__ import annotations

import gzip
import zlib

import pytest

from foveal.errors import Overloaded, TooLarge, Undecodable, UrlFailed
from foveal.fetch.body import SPARE_PIECES, Allowance
from foveal.fetch.inflate import STEP_BYTES
from tests.unit.fetch.network import PUBLIC, Network, allowance, answer, fetcher, names

LIMIT = 100_000
CHUNKED = "Transfer-Encoding: chunked"


async def fetch(script: list[bytes], max_bytes: int = LIMIT) -> bytes:
    return await fetch_within(Network({PUBLIC: [script]}), allowance(max_bytes))


async def fetch_within(network: Network, room: Allowance) -> bytes:
    web = fetcher(network, names(a_example=PUBLIC))
    try:
        return await web.fetch(web.rules.url_of("http://a.example/"), room)
    finally:
        assert network.num_open == 0


def chunks(body: bytes, size: int) -> list[bytes]:
    pieces = [body[i : i + size] for i in range(0, len(body), size)]
    return [*answer(b"", 200, CHUNKED), *[b"%x\r\n%s\r\n" % (len(p), p) for p in pieces], b"0\r\n\r\n"]


def packed(body: bytes, name: str, window_bits: int = 31) -> list[bytes]:
    squeeze = zlib.compressobj(wbits=window_bits)
    return answer(squeeze.compress(body) + squeeze.flush(), 200, f"Content-Encoding: {name}")


async def test_a_body_of_just_the_limit_is_read_and_one_more_byte_is_not() -> None:
    full = bytes(LIMIT)
    for make in (answer, lambda body: chunks(body, 1000), lambda body: packed(body, "gzip")):
        assert await fetch(make(full)) == full
        with pytest.raises(TooLarge, match="--max-body-bytes"):
            await fetch(make(full + b"x"))


async def test_a_length_over_the_limit_is_refused_before_the_body_is_read() -> None:
    network = Network({PUBLIC: [[*answer(b"", 200, f"Content-Length: {LIMIT + 1}"), b"body"]]})
    with pytest.raises(TooLarge):
        await fetch_within(network, allowance(LIMIT))
    assert network.streams[0].script == [b"body"]


async def test_an_endless_body_is_read_to_the_limit_and_no_further() -> None:
    network = Network({PUBLIC: [[*answer(b"", 200, CHUNKED), *[b"3e8\r\n" + bytes(1000) + b"\r\n"] * 1000]]})
    with pytest.raises(TooLarge):
        await fetch_within(network, allowance(LIMIT))
    assert len(network.streams[0].script) > 850


async def test_a_body_longer_than_it_says_ends_where_it_says() -> None:
    assert await fetch([*answer(b"image", 200, "Content-Length: 3"), b"more" * 1000]) == b"ima"


async def test_a_body_until_the_connection_closes_is_read() -> None:
    assert await fetch([b"HTTP/1.0 200 OK\r\n\r\n", b"im", b"age"]) == b"image"


@pytest.mark.parametrize(("name", "bits"), [("gzip", 31), ("X-Gzip", 31), ("deflate", 15), ("identity", 0)])
async def test_a_body_that_is_compressed_though_nobody_asked_is_read(name: str, bits: int) -> None:
    script = packed(b"image" * 9000, name, bits) if bits else answer(b"image" * 9000, 200, "Content-Encoding: identity")
    assert await fetch(script) == b"image" * 9000


async def test_a_small_body_that_grows_without_bounds_is_stopped_at_the_limit() -> None:
    held: list[int] = []
    script = packed(bytes(16 << 20), "gzip")
    with pytest.raises(TooLarge):
        await fetch_within(Network({PUBLIC: [script]}), Allowance(1 << 20, held.append))
    assert sum(held) <= 1 << 20 and max(held) <= STEP_BYTES


async def test_compressed_bytes_that_become_nothing_count_too() -> None:
    endless_name = gzip.compress(b"", mtime=0)[:3] + b"\x08" + gzip.compress(b"")[4:10]
    with pytest.raises(TooLarge):
        await fetch([*answer(b"", 200, CHUNKED, "Content-Encoding: gzip"), b"a\r\n" + endless_name + b"\r\n",
                     *[b"3e8\r\n" + b"n" * 1000 + b"\r\n"] * 1000])  # fmt: skip


@pytest.mark.parametrize(
    ("body", "name"),
    [
        (gzip.compress(b"image", mtime=0)[:-9], "gzip"),
        (b"not gzip", "gzip"),
        (gzip.compress(b"image", mtime=0) + b"more", "gzip"),
        (gzip.compress(b"image", mtime=0) * 2, "gzip"),
        (b"image", "br"),
        (b"image", "gzip, gzip"),
    ],
)
async def test_compression_that_is_damaged_or_unknown_fails(body: bytes, name: str) -> None:
    with pytest.raises(UrlFailed, match="compressed"):
        await fetch(answer(body, 200, f"Content-Encoding: {name}"))


async def test_an_empty_body_is_no_image() -> None:
    with pytest.raises(Undecodable, match="empty"):
        await fetch(answer(b""))


async def test_a_body_of_dust_is_given_up() -> None:
    with pytest.raises(UrlFailed, match="tiny"):
        await fetch(chunks(bytes(SPARE_PIECES + 500), 1))
    assert await fetch(chunks(bytes(SPARE_PIECES // 2), 1)) == bytes(SPARE_PIECES // 2)
    assert await fetch(chunks(bytes(1 << 20), 512), 1 << 20) == bytes(1 << 20)


async def test_what_arrives_is_held_and_a_full_server_says_so() -> None:
    def hold(num_bytes: int) -> None:
        raise Overloaded("full")

    with pytest.raises(Overloaded):
        await fetch_within(Network({PUBLIC: [answer()]}), Allowance(LIMIT, hold))


async def test_all_bodies_of_a_request_share_one_allowance() -> None:
    room = allowance(LIMIT)
    network = Network({PUBLIC: [answer(bytes(60_000))]})
    await fetch_within(network, room)
    with pytest.raises(TooLarge):
        await fetch_within(network, room)
