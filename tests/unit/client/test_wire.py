"""The answer's bytes: what is read, what is refused, and that nothing is copied or run."""

from __future__ import annotations

import json
import pickle
import struct
from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from foveal_client import GridTHW, InvalidResponse, Level
from foveal_client._wire import parse_server_timing, read_embeddings

Build = Callable[..., bytes]
BF16 = np.dtype(ml_dtypes.bfloat16)
DTYPES = [BF16, np.dtype(np.float16), np.dtype(np.float32)]


def container(header: object, data: bytes = b"", pad: int = 0) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    text += b" " * pad
    return struct.pack("<Q", len(text)) + text + data


def tensor(dtype: str, shape: list[int], begin: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_values_keep_their_dtype_and_share_the_bodys_memory(build: Build, dtype: np.dtype[Any]) -> None:
    body = bytearray(build([np.arange(12).reshape(2, 6).astype(dtype)]))
    [embedding] = read_embeddings(body, 1)
    assert (embedding.values.dtype, embedding.shape, embedding.dtype) == (dtype, (2, 6), dtype.name)
    assert np.shares_memory(embedding.values, np.frombuffer(body, np.uint8))
    assert embedding.values.flags.writeable


def test_an_unaligned_tensor_is_copied_and_still_right(build: Build) -> None:
    aligned = build([np.arange(6, dtype=np.float32).reshape(2, 3)])
    (length,) = struct.unpack_from("<Q", aligned)
    shifted = bytearray(container(aligned[8 : 8 + length], aligned[8 + length :], pad=1))
    [embedding] = read_embeddings(shifted, 1)
    assert embedding.values.flags.aligned
    assert embedding.values.tolist() == [[0, 1, 2], [3, 4, 5]]


def test_pooled_answers_have_one_axis_and_still_say_their_tokens(build: Build) -> None:
    [embedding] = read_embeddings(build([np.ones(5, np.float32)], grids=[(1, 4, 4)], tokens=[4]), 1)
    assert (embedding.shape, embedding.tokens, embedding.grid_thw) == ((5,), 4, GridTHW(1, 4, 4))


def test_class_and_register_rows_beside_the_patches_are_fine(build: Build) -> None:
    [embedding] = read_embeddings(build([np.ones((21, 3), np.float32)], grids=[(1, 4, 4)]), 1)
    assert embedding.tokens == 21


def test_levels_are_the_columns_they_name(build: Build) -> None:
    levels = [{"name": "main", "start": 0, "stop": 2}, {"name": "deepstack_0", "start": 2, "stop": 6}]
    body = build([np.arange(12, dtype=np.float32).reshape(2, 6)], levels=levels)
    [embedding] = read_embeddings(bytearray(body), 1)
    assert embedding.levels == (Level("main", 0, 2), Level("deepstack_0", 2, 6))
    assert embedding.level("main").tolist() == [[0, 1], [6, 7]]
    assert embedding.level(1).tolist() == [[2, 3, 4, 5], [8, 9, 10, 11]]
    assert np.shares_memory(embedding.level(1), embedding.values)


def wrong_answers(build: Build) -> Iterator[tuple[str, bytes, int, str]]:
    """(name, body, images asked for, words that the error must have)."""
    two = np.ones((2, 3), np.float32)
    level = [{"name": "main", "start": 0, "stop": 2}]
    yield "fewer images than asked", build([two]), 2, r"grid_thw must be int64 \[2, 3\].*\[1, 3\]"
    yield "more rows than tokens", build([two], tokens=[3]), 1, "2 rows.*3 tokens"
    yield "a grid that cannot give the tokens", build([two], grids=[(1, 3, 3)]), 1, "2 tokens.*9 patches"
    yield "far more tokens than patches", build([np.ones((40, 2), np.float32)], grids=[(1, 1, 4)]), 1, "40.*4 patches"
    yield "a grid without patches", build([two], grids=[(1, 0, 4)]), 1, "grid_thw holds 0"
    yield "another dtype than announced", build([two], dtype="bfloat16"), 1, "float32.*bfloat16"
    yield "levels that end too early", build([two], levels=level), 1, "3 columns.*end at 2"
    yield "a gap between levels", build([two], levels=[{"name": "x", "start": 1, "stop": 3}]), 1, "1..3.*at 0"
    yield "levels that are no list", build([two], levels="{}"), 1, "levels must be a list"
    yield "too few hashes", build([two], sha256=[]), 1, "sha256.*0 entries for 1"
    yield "a key that is none", build([two], keys=["../../x"]), 1, "64 hex digits"
    yield "no keys", build([two], keys=None), 1, "lacks keys"
    yield "tokens that are no integers", build([two], tokens=[True]), 1, "tokens.*list of int"
    yield "usage of another request", build([two], usage={"images": 2, "patches": 1, "tokens": 1}), 1, "2 images.*had 1"
    yield "usage without counts", build([two], usage={}), 1, "usage must count"
    yield "no model", build([two], model=None), 1, "lacks model"
    yield "metadata that is not JSON", build([two], tokens="[1"), 1, "tokens.*not JSON"
    yield "three axes", build([np.ones((2, 3, 1), np.float32)], tokens=[2], grids=[(1, 2, 4)]), 1, "shape"
    yield "no rows", build([np.ones((0, 3), np.float32)], grids=[(1, 2, 2)]), 1, r"shape \[0, 3\]"


def test_numbers_that_do_not_agree_are_refused_by_name(build: Build) -> None:
    for name, body, asked, words in wrong_answers(build):
        with pytest.raises(InvalidResponse, match=words):
            read_embeddings(body, asked)
            pytest.fail(name)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        pytest.param(b"", "at least 8 bytes, this one 0", id="empty"),
        pytest.param(struct.pack("<Q", 99) + b"{}", "99 bytes; in a body of 10", id="header beyond the body"),
        pytest.param(struct.pack("<Q", 2**63), "claims 9223372036854775808", id="absurd header length"),
        pytest.param(container(b"[" * 100_000), "not JSON", id="nested without end"),
        pytest.param(container(b"\xff\xfe"), "not JSON", id="not text"),
        pytest.param(container([]), "a list, not an object", id="a list"),
        pytest.param(container(b'{"a":1,"a":2}'), "repeats a key", id="a name twice"),
        pytest.param(container({"__metadata__": {"a": 1}}), "strings only", id="metadata not strings"),
        pytest.param(container({"x": 1}), "dtype, shape and data_offsets", id="entry not an object"),
        pytest.param(container({"x": tensor("U8", [1], 0, 1)}, b"1"), "dtype 'U8' is none of", id="other dtype"),
        pytest.param(container({"x": tensor("F32", [-1], 0, 4)}), "from 0 up", id="negative"),
        pytest.param(container({"x": tensor("F32", [2], 0, 4)}, b"1234"), "needs 8 bytes.*4", id="shape and length"),
        pytest.param(container({"x": tensor("F32", [1], 4, 8)}, b"12345678"), "begins at byte 4.*at 0", id="gap"),
        pytest.param(container({"x": tensor("F32", [1], 0, 4)}, b"12"), "end at byte 4.*has 2", id="outside"),
        pytest.param(container({"x": tensor("F32", [1], 0, 4)}, b"12345"), "end at byte 4.*has 5", id="rest"),
        pytest.param(container({"x": tensor("F32", [0] * 9, 0, 0)}), "9 dimensions", id="many dimensions"),
        pytest.param(pickle.dumps([1, 2, 3]), "header claims", id="pickle"),
    ],
)
def test_a_malformed_container_is_refused_with_the_numbers(body: bytes, words: str) -> None:
    with pytest.raises(InvalidResponse, match=words):
        read_embeddings(body, 1)


def test_overlapping_tensors_are_refused() -> None:
    header = {"a": tensor("F32", [2], 0, 8), "b": tensor("F32", [2], 4, 12)}
    with pytest.raises(InvalidResponse, match="b begins at byte 4, the one before it ends at 8"):
        read_embeddings(container(header, bytes(12)), 1)


arrays = st.sampled_from(DTYPES).flatmap(
    lambda dtype: st.lists(
        npst.arrays(np.float32, st.tuples(st.integers(1, 5), st.just(3)), elements=st.floats(-64, 64, width=16)).map(
            lambda array: array.astype(dtype)
        ),
        min_size=1,
        max_size=4,
    )
)


@given(arrays=arrays)
def test_what_another_writer_wrote_is_read_bit_for_bit(build: Build, arrays: list[np.ndarray[Any, Any]]) -> None:
    embeddings = read_embeddings(bytearray(build(arrays)), len(arrays))
    for written, read in zip(arrays, embeddings, strict=True):
        assert read.values.tobytes() == written.tobytes()
        assert (read.tokens, read.grid_thw.num_patches) == (len(written), 4 * len(written))


@given(data=st.data())
def test_damaged_bytes_raise_only_invalid_response(build: Build, data: st.DataObject) -> None:
    body = bytearray(build([np.ones((2, 3), np.float32), np.ones((1, 3), np.float32)]))
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(body)) | st.just(len(body)))
    try:
        embeddings = read_embeddings(body[:cut], 2)
    except InvalidResponse:
        return
    assert len(embeddings) == 2


@given(body=st.binary(max_size=64))
def test_any_bytes_raise_only_invalid_response(body: bytes) -> None:
    with pytest.raises(InvalidResponse):
        read_embeddings(body, 1)


def test_server_timing_becomes_milliseconds_by_stage() -> None:
    header = 'queue;dur=1.5, prep;desc="decode";dur=3, total;dur="9.25", cached, bad;dur=1.2.3'
    assert parse_server_timing(header) == {"queue": 1.5, "prep": 3.0, "total": 9.25}
    assert parse_server_timing("") == {}
