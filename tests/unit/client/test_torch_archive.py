"""A tensor's archive, written without torch and read by torch itself."""

from __future__ import annotations

import io
import math
import warnings
import zipfile
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foveal_client._torch_archive import ALIGNMENT, MAX_VALUES_BYTES, TorchArchive, torch_archive

torch = pytest.importorskip("torch")
DTYPES = {"bfloat16": np.dtype(ml_dtypes.bfloat16), "float16": np.dtype("<f2"), "float32": np.dtype("<f4")}
GOLDEN = Path(__file__).parents[2] / "data" / "tensor_bfloat16_3x4.pt"


def whole(archive: TorchArchive) -> bytes:
    return b"".join(archive.buffers())


def load(file: bytes) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return torch.load(io.BytesIO(file), weights_only=True)


@settings(max_examples=150, deadline=None)
@given(
    dtype=st.sampled_from(sorted(DTYPES)),
    shape=st.lists(st.integers(0, 7), max_size=4),
    seed=st.integers(0, 2**32 - 1),
)
def test_torch_loads_equal_bits_of_every_shape_and_dtype(dtype: str, shape: list[int], seed: int) -> None:
    # Any bits, also those of NaN and infinity: an archive does not judge its values.
    values = np.random.default_rng(seed).bytes(math.prod(shape) * DTYPES[dtype].itemsize)
    archive = torch_archive(values, dtype, shape)
    found = load(whole(archive))
    assert (str(found.dtype), list(found.shape)) == (f"torch.{dtype}", shape)
    assert found.is_contiguous()
    # NumPy has no bfloat16 of torch's, so the bits are compared as integers.
    bits = torch.int32 if dtype == "float32" else torch.int16
    assert found.reshape(-1).view(bits).numpy().tobytes() == values


def test_a_scalar_keeps_its_value() -> None:
    assert load(whole(torch_archive(np.float32(2.5).tobytes(), "float32", []))).item() == 2.5


@pytest.mark.parametrize("rows", [255, 256, 65_535, 65_536, 70_001])
def test_sizes_at_the_edges_of_pickles_integers(rows: int) -> None:
    values = np.arange(rows, dtype=np.float32)
    assert torch.equal(load(whole(torch_archive(values.data, "float32", (rows, 1)))), torch.arange(rows)[:, None])


def test_every_zip_reader_finds_the_right_checksums() -> None:
    with zipfile.ZipFile(io.BytesIO(whole(torch_archive(b"12345678", "float16", (2, 2))))) as found:
        assert found.testzip() is None
        assert found.read("archive/data/0") == b"12345678"


def test_the_values_are_the_callers_own_memory_and_lie_aligned() -> None:
    values = np.ones((5, 3), np.float32)
    archive = torch_archive(values.data, "float32", values.shape)
    assert np.shares_memory(np.frombuffer(archive.values, np.float32), values)
    assert len(archive.head) % ALIGNMENT == 0
    assert archive.num_bytes == len(whole(archive))


def test_equal_values_give_equal_bytes_and_those_of_the_file_kept_with_the_tests() -> None:
    values = (np.arange(12) / 8 - 0.5).astype(ml_dtypes.bfloat16)
    made = whole(torch_archive(values.tobytes(), "bfloat16", (3, 4)))
    assert made == GOLDEN.read_bytes()
    assert load(made).tolist() == values.astype(np.float32).reshape(3, 4).tolist()


@pytest.mark.parametrize(
    ("num_bytes", "dtype", "shape", "why"),
    [
        (8, "float64", (1,), "float64"),
        (8, "float32", (3,), "needs 12 bytes, not 8"),
        (0, "float32", (-1,), "not -1"),
        (0, "float32", (0, 2**31), "not 2147483648"),
    ],
)
def test_what_is_no_tensor_is_refused_with_the_reason(
    num_bytes: int, dtype: str, shape: tuple[int, ...], why: str
) -> None:
    with pytest.raises(ValueError, match=why):
        torch_archive(bytes(num_bytes), dtype, shape)


def test_what_a_zip_file_cannot_hold_is_refused() -> None:
    # Pages of zeros that nobody touches cost no memory.
    values = np.zeros(MAX_VALUES_BYTES // 4 + 1, np.float32)
    with pytest.raises(ValueError, match="over the"):
        torch_archive(values.data, "float32", values.shape)


def test_a_strided_view_is_refused_rather_than_copied() -> None:
    with pytest.raises((TypeError, BufferError)):
        torch_archive(np.zeros((4, 4), np.float32)[:, ::2].data, "float32", (4, 2))
