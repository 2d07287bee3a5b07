"""The message that SGLang's language server takes: a pickled description, then the raw rows of all images of a part.

Its first frame is a pickle of SGLang's own class, which holds a dtype of torch and a number of an enum. Neither is
needed here: a pickle names classes by their path, so the opcodes below write it without them. Nothing is ever
unpickled on this side.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from foveal.engine.items import Encoded
from foveal.errors import FovealError
from foveal.handover.sglang.part import Part
from foveal.types import DType, GridTHW

_MAX_INT = (1 << 31) - 1


@dataclass(frozen=True)
class _Global:
    """A class or constant by its path, as the receiver's allow-list has it."""

    module: str
    name: str


# these paths are allowed by SGLang 0.5.19 up to 0.5.23, the version that this was tried with
_EMBEDDING = _Global("sglang.srt.disaggregation.encoder.receiver", "EmbeddingData")
_MODALITY = _Global("sglang.srt.managers.schedule_batch", "Modality")
_IMAGE = 1

_Value = None | int | str | Sequence["_Value"] | _Global
_Fields = dict[str, "_Value | bytes"]


def head_of(part: Part, images: Sequence[Encoded]) -> bytes:
    """The first frame for these images; raises FovealError where rows and grids disagree, which ends the receiver."""
    rows, width = sum(image.shape[0] for image in images), images[0].shape[-1]
    if any(image.shape != (image.num_tokens, width) for image in images):
        raise FovealError("the rows of this part do not match its grids: this is a bug")
    grids = [image.grid for image in images]
    return embedding_data(part, grids, (rows, width), images[0].output.dtype)


def embedding_data(part: Part, grids: Sequence[GridTHW], shape: tuple[int, int], dtype: DType) -> bytes:
    """The first frame: grids in patches, one a row; shape of the rows that follow, [rows, width]."""
    described: _Fields = {
        "grid_dim": [list(grid) for grid in grids],
        "shape": list(shape),
        "dtype": _Global("torch", dtype),
    }
    return _pickled(part, described)


def error_data(part: Part, message: str, status: int) -> bytes:
    """The only frame of a part that could not be encoded."""
    return _pickled(part, {"error_msg": message, "error_code": status})


def _pickled(part: Part, said: _Fields) -> bytes:
    fields: _Fields = {
        "req_id": part.req_id,
        "num_parts": part.num_parts,
        "part_idx": part.part_idx,
        "grid_dim": None,
        "modality": _dumped(_MODALITY) + _dumped(_IMAGE) + pickle.TUPLE1 + pickle.REDUCE,
        "embedding": None,
        "send_time": None,
        "dtype": None,
        "shape": None,
        "error_msg": None,
        "error_code": None,
    }
    pairs = b"".join(_dumped(name) + _dumped(value) for name, value in (fields | said).items())
    made = _dumped(_EMBEDDING) + pickle.EMPTY_TUPLE + pickle.NEWOBJ
    state = pickle.EMPTY_DICT + pickle.MARK + pairs + pickle.SETITEMS
    return pickle.PROTO + b"\x02" + made + state + pickle.BUILD + pickle.STOP


def _dumped(value: _Value | bytes) -> bytes:
    """The opcodes that leave this value on the unpickler's stack; bytes are opcodes already."""
    match value:
        case bytes():
            return value
        case None:
            return pickle.NONE
        case _Global(module, name):
            return pickle.GLOBAL + f"{module}\n{name}\n".encode("ascii")
        case str():
            text = value.encode("utf-8", "backslashreplace")
            return pickle.BINUNICODE + struct.pack("<I", len(text)) + text
        case int():
            if not 0 <= value <= _MAX_INT:
                raise FovealError(f"{value} has no place in SGLang's message: this is a bug")
            return pickle.BININT + struct.pack("<i", value)
        case _:
            return pickle.EMPTY_LIST + pickle.MARK + b"".join(map(_dumped, value)) + pickle.APPENDS
