"""Ways to spoil a file. Every input follows from a seed and its number, so that it can be made again."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Sequence

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_TELLING = (
    0,
    1,
    2,
    3,
    7,
    8,
    15,
    16,
    0x7F,
    0x80,
    0xFF,
    0x100,
    0x7FFF,
    0x8000,
    0xFFFF,
    0x7FFFFFFF,
    0x80000000,
    0xFFFFFFFF,
)
_HEADER_BYTES = 96
_MAX_BYTES = 1 << 16

Mutation = Callable[[bytearray, random.Random, Sequence[bytes]], None]


def flip_bits(data: bytearray, rng: random.Random, _: Sequence[bytes]) -> None:
    """A few bits, anywhere."""
    for _i in range(rng.choice((1, 1, 2, 4, 16))):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def edit_header(data: bytearray, rng: random.Random, _: Sequence[bytes]) -> None:
    """A telling number where sizes, offsets and kinds are."""
    _write_number(data, rng, rng.randrange(min(len(data), _HEADER_BYTES)))


def lie_about_length(data: bytearray, rng: random.Random, _: Sequence[bytes]) -> None:
    """A number anywhere becomes a little, or very much, larger or smaller."""
    size, order = rng.choice((1, 2, 4)), rng.choice(("big", "little"))
    at = rng.randrange(len(data))
    value = int.from_bytes(data[at : at + size], order) + rng.choice((-256, -2, -1, 1, 2, 256, 1 << 20))
    data[at : at + size] = (value % (1 << (8 * size))).to_bytes(size, order)


def write_anywhere(data: bytearray, rng: random.Random, _: Sequence[bytes]) -> None:
    """A telling number anywhere."""
    _write_number(data, rng, rng.randrange(len(data)))


def truncate(data: bytearray, rng: random.Random, _: Sequence[bytes]) -> None:
    """The end is missing."""
    del data[rng.randrange(len(data)) :]


def cut_out(data: bytearray, rng: random.Random, _: Sequence[bytes]) -> None:
    """A piece is missing."""
    at = rng.randrange(len(data))
    del data[at : at + rng.choice((1, 2, 4, 16, 200))]


def repeat(data: bytearray, rng: random.Random, _: Sequence[bytes]) -> None:
    """A piece comes many times."""
    at = rng.randrange(len(data))
    piece = bytes(data[at : at + rng.choice((1, 4, 12, 60, 300))])
    data[at:at] = piece * rng.choice((1, 2, 20))


def splice(data: bytearray, rng: random.Random, others: Sequence[bytes]) -> None:
    """The rest is another file's."""
    other = rng.choice(others)
    del data[rng.randrange(len(data)) :]
    data += other[rng.randrange(len(other)) :]


def insert_noise(data: bytearray, rng: random.Random, _: Sequence[bytes]) -> None:
    """Bytes that nobody meant."""
    at = rng.randrange(len(data))
    data[at:at] = rng.randbytes(rng.choice((1, 3, 8, 64)))


MUTATIONS: tuple[Mutation, ...] = (
    *(flip_bits, edit_header, edit_header, lie_about_length, write_anywhere),
    *(truncate, cut_out, repeat, splice, insert_noise),
)


def spoiled(files: Sequence[bytes], seed: int, number: int) -> bytes:
    """Input `number` of a run: one of the files, after one to four mutations."""
    rng = random.Random(f"{seed}/{number}")
    data = bytearray(rng.choice(files))
    for _ in range(rng.choice((1, 1, 2, 4))):
        if data:
            rng.choice(MUTATIONS)(data, rng, files)
    del data[_MAX_BYTES:]
    return reseal(bytes(data)) if rng.random() < 0.8 else bytes(data)


def reseal(data: bytes) -> bytes:
    """A PNG with right checksums again: a wrong one would be all that is ever found."""
    if not data.startswith(_SIGNATURE):
        return data
    sealed, at = bytearray(data), len(_SIGNATURE)
    while at + 12 <= len(sealed):
        end = at + 8 + int.from_bytes(sealed[at : at + 4], "big")
        if end + 4 > len(sealed):
            break
        sealed[end : end + 4] = zlib.crc32(sealed[at + 4 : end]).to_bytes(4, "big")
        at = end + 4
    return bytes(sealed)


def _write_number(data: bytearray, rng: random.Random, at: int) -> None:
    size = rng.choice((1, 2, 4))
    value = rng.choice(_TELLING) % (1 << (8 * size))
    data[at : at + size] = value.to_bytes(size, rng.choice(("big", "little")))
