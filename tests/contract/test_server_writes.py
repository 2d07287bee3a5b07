"""The server writes what the golden files say; the client reads the same files (test_golden_files.py)."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from foveal.api.answers import safetensors_buffers
from foveal.api.context import RequestContext
from foveal.api.errors import error_response
from foveal.engine.items import Encoded
from foveal.errors import error_of
from foveal.families.spec import ModelSpec
from foveal.handover.ec_file import Buffer, ec_file
from foveal.ipc.arena import Arena
from foveal.types import GridTHW, Level, Output
from tests.fakes import SPEC

GOLDEN = Path(__file__).parent / "golden"


def split(body: bytes) -> tuple[dict[str, Any], bytes]:
    size = int.from_bytes(body[:8], "little")
    assert size % 8 == 0
    return json.loads(body[8 : 8 + size]), body[8 + size :]


def service_side(name: str) -> tuple[ModelSpec, list[Encoded]]:
    """What the server holds when it is about to write a golden answer."""
    golden, data = split((GOLDEN / f"{name}.safetensors").read_bytes())
    meta = {key: value for key, value in golden["__metadata__"].items()}
    kind = "pooled" if len(golden["image.0"]["shape"]) == 1 else "tokens"
    levels = tuple(Level(**level) for level in json.loads(meta["levels"]))
    width = golden["image.0"]["shape"][-1]
    spec = replace(SPEC, name=meta["model"], levels=levels or SPEC.levels, width=width, pooled_width=width)
    grids = np.frombuffer(data[: 24 * len(json.loads(meta["tokens"]))], "<i8").reshape(-1, 3)
    arena = Arena("test", 1 << 16)
    encoded = []
    for i, tokens in enumerate(json.loads(meta["tokens"])):
        start, end = golden[f"image.{i}"]["data_offsets"]
        block = arena.allocate(end - start)
        block.view[:] = np.frombuffer(data[start:end], np.uint8)
        shape = tuple(golden[f"image.{i}"]["shape"])
        output = Output(kind, meta["dtype"])  # type: ignore[arg-type]
        grid = GridTHW(*(int(n) for n in grids[i]))
        digest, key = (json.loads(meta[name])[i] for name in ("sha256", "keys"))
        encoded.append(Encoded(block, shape, output, grid, tokens, (1, 1), digest, key))
    return spec, encoded


def joined(buffers: Iterable[Buffer]) -> bytes:
    return b"".join(bytes(buffer) for buffer in buffers)


@pytest.mark.parametrize("name", ["two_images_bfloat16", "pooled_float32"])
def test_an_answer_has_the_golden_tensors_and_metadata(name: str) -> None:
    golden, data = split((GOLDEN / f"{name}.safetensors").read_bytes())
    meta = golden["__metadata__"]
    spec, encoded = service_side(name)

    written, values = split(joined(safetensors_buffers(spec, encoded)))

    assert values == data
    assert {k: v for k, v in written.items() if k != "__metadata__"} == {
        k: v for k, v in golden.items() if k != "__metadata__"
    }
    for key in ("model", "dtype", "sha256", "keys", "usage", "tokens"):
        assert written["__metadata__"][key] == meta[key], key
    if json.loads(meta["levels"]):
        assert written["__metadata__"]["levels"] == meta["levels"]


def test_an_answer_of_what_is_held_has_the_golden_metadata_and_no_rows() -> None:
    golden, data = split((GOLDEN / "handover" / "held.safetensors").read_bytes())
    written, values = split(joined(safetensors_buffers(*service_side("two_images_bfloat16"), held=True)))
    assert (values, written["grid_thw"], set(written)) == (data, golden["grid_thw"], set(golden))
    assert golden["__metadata__"].items() <= written["__metadata__"].items()


def test_the_file_of_one_image_is_the_golden_one_byte_for_byte() -> None:
    spec, encoded = service_side("two_images_bfloat16")
    assert joined(ec_file(spec, encoded[1])) == (GOLDEN / "handover" / "ec_file.safetensors").read_bytes()


@pytest.mark.parametrize("path", sorted((GOLDEN / "errors").glob("*.json")), ids=lambda path: path.stem)
def test_an_error_has_the_golden_form(path: Path) -> None:
    golden = json.loads(path.read_text())
    body = golden.get("body", golden)["error"]
    error = error_of(body["code"], body["message"])
    error.param = body["param"]
    response = error_response(RequestContext(body["request_id"]), error)
    assert json.loads(bytes(response.body))["error"] == body
