"""Bodies in pieces: base64 of an archive piece by piece is base64 of the whole, and no piece is large."""

from __future__ import annotations

import base64
import io

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from foveal.handover import outgoing
from foveal.handover.outgoing import PIECE_BYTES, Outgoing
from foveal_client._torch_archive import torch_archive


@given(st.integers(1, 40), st.integers(1, 9), st.sampled_from(["bfloat16", "float16", "float32"]), st.integers(1, 8))
def test_pieces_are_the_base64_of_the_archive(rows: int, width: int, dtype: str, piece: int) -> None:
    values = np.random.default_rng(rows * width).bytes(rows * width * (4 if dtype == "float32" else 2))
    archive = torch_archive(values, dtype, (rows, width))
    before, outgoing.PIECE_BYTES = outgoing.PIECE_BYTES, piece * 3
    try:
        body = Outgoing([b'["', archive, b'"]'])
        sent = [bytes(part) for part in body.pieces()]
    finally:
        outgoing.PIECE_BYTES = before
    whole = b"".join(sent)
    assert whole == b'["' + base64.b64encode(b"".join(archive.buffers())) + b'"]' and len(whole) == body.num_bytes
    tensor = torch.load(io.BytesIO(base64.b64decode(whole[2:-2])), weights_only=True)
    assert tensor.shape == (rows, width) and tensor.view(torch.uint8).numpy().tobytes() == values


def test_no_piece_is_large_and_a_body_can_be_sent_again() -> None:
    archive = torch_archive(bytes(5_000_000), "float16", (2500, 1000))
    body = Outgoing([bytes(3_000_000), archive])
    first, second = ([bytes(piece) for piece in body.pieces()] for _ in range(2))
    assert first == second and max(len(piece) for piece in first) <= PIECE_BYTES // 3 * 4
    assert sum(len(piece) for piece in first) == body.num_bytes
