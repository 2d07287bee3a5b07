"""The first frame of SGLang's message, byte for byte, and read back with an allow-list like SGLang's."""

from __future__ import annotations

import io
import pickletools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foveal.engine.items import Encoded
from foveal.errors import FovealError
from foveal.handover.sglang.frame import embedding_data, error_data, head_of
from foveal.handover.sglang.part import Part
from foveal.ipc.arena import Block
from foveal.ipc.messages import Span
from foveal.types import DType, GridTHW, Output
from tests.language_server import ALLOWED, Modality, unpickled

PART = Part("ab_local_part_0", 2, 0, "IMAGE", [], "10.0.0.5", 5000)
DTYPES: tuple[DType, ...] = ("bfloat16", "float16", "float32")
GOLDEN = (
    b"\x80\x02csglang.srt.disaggregation.encoder.receiver\nEmbeddingData\n)\x81}("
    b"X\x06\x00\x00\x00req_idX\x0f\x00\x00\x00ab_local_part_0"
    b"X\t\x00\x00\x00num_partsJ\x02\x00\x00\x00"
    b"X\x08\x00\x00\x00part_idxJ\x00\x00\x00\x00"
    b"X\x08\x00\x00\x00grid_dim](](J\x01\x00\x00\x00J\x04\x00\x00\x00J\x06\x00\x00\x00ee"
    b"X\x08\x00\x00\x00modalitycsglang.srt.managers.schedule_batch\nModality\nJ\x01\x00\x00\x00\x85R"
    b"X\t\x00\x00\x00embeddingN"
    b"X\t\x00\x00\x00send_timeN"
    b"X\x05\x00\x00\x00dtypectorch\nbfloat16\n"
    b"X\x05\x00\x00\x00shape](J\x06\x00\x00\x00J@\x00\x00\x00e"
    b"X\t\x00\x00\x00error_msgN"
    b"X\n\x00\x00\x00error_codeNub."
)


def image(grid: tuple[int, int, int], shape: tuple[int, ...], num_tokens: int) -> Encoded:
    block = Block(np.zeros(4, np.uint8), Span(0, 4))
    output = Output("tokens", "float32")
    return Encoded(
        embedding=block,
        shape=shape,
        output=output,
        grid=GridTHW(*grid),
        num_tokens=num_tokens,
        image_size=(1, 1),
        sha256="",
        key="",
    )


def test_the_bytes_are_these() -> None:
    assert embedding_data(PART, [GridTHW(1, 4, 6)], (6, 64), "bfloat16") == GOLDEN


def test_the_pickle_is_well_formed_and_names_nothing_beyond_what_is_allowed() -> None:
    names = [arg for op, arg, _ in pickletools.genops(GOLDEN) if op.name in ("GLOBAL", "STACK_GLOBAL")]
    assert [tuple(str(name).split(" ")) for name in names] == [
        ("sglang.srt.disaggregation.encoder.receiver", "EmbeddingData"),
        ("sglang.srt.managers.schedule_batch", "Modality"),
        ("torch", "bfloat16"),
    ]
    pickletools.dis(GOLDEN, out=io.StringIO())  # also checks the stack and the memo


@settings(deadline=None)
@given(
    req_id=st.text(min_size=1),
    num_parts=st.integers(1, 1 << 16),
    grids=st.lists(st.tuples(st.integers(1, 64), st.integers(2, 1 << 12), st.integers(2, 1 << 12)), min_size=1),
    shape=st.tuples(st.integers(1, 1 << 24), st.integers(1, 1 << 16)),
    dtype=st.sampled_from(DTYPES),
)
def test_what_is_written_is_read(
    req_id: str, num_parts: int, grids: list[tuple[int, int, int]], shape: tuple[int, int], dtype: DType
) -> None:
    part = Part(req_id, num_parts, num_parts - 1, "IMAGE", [])
    data = unpickled(embedding_data(part, [GridTHW(*grid) for grid in grids], shape, dtype))
    assert (data.req_id, data.num_parts, data.part_idx) == (req_id, num_parts, num_parts - 1)
    assert data.grid_dim == [list(grid) for grid in grids] and data.shape == list(shape)
    assert data.dtype is ALLOWED["torch", dtype] and data.modality is Modality.IMAGE
    assert data.error_msg is None and data.error_code is None and data.embedding is None


@settings(deadline=None)
@given(message=st.text(), status=st.integers(400, 599))
def test_an_error_is_a_text_and_a_plain_number(message: str, status: int) -> None:
    data = unpickled(error_data(PART, message, status))
    assert (data.error_msg, data.error_code) == (message, status) and type(data.error_code) is int
    assert data.dtype is None and data.shape is None and data.grid_dim is None


def test_a_half_of_a_surrogate_pair_does_no_harm() -> None:
    assert unpickled(error_data(PART, "\ud800", 400)).error_msg == "\\ud800"


def test_several_images_are_one_block_of_rows_and_a_grid_each() -> None:
    images = [image((1, 4, 6), (6, 64), 6), image((1, 2, 2), (1, 64), 1)]
    data = unpickled(head_of(PART, images))
    assert data.shape == [7, 64] and data.grid_dim == [[1, 4, 6], [1, 2, 2]]


@pytest.mark.parametrize("shape", [(5, 64), (6, 63), (64,)], ids=str)
def test_rows_that_would_end_the_receiver_are_not_sent(shape: tuple[int, ...]) -> None:
    with pytest.raises(FovealError, match="this is a bug"):
        head_of(PART, [image((1, 4, 6), (6, 64), 6), image((1, 4, 6), shape, 6)])
