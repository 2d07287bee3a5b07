"""The golden bytes, and that the client reads them for what they say."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import httpx
import ml_dtypes
import numpy as np
import pytest
import safetensors

import foveal_client
from foveal_client import APIStatusError, Client, Embedding
from foveal_client._errors import BY_CODE

FOLDER = Path(__file__).parent
GOLDEN = FOLDER / "golden"
ANSWERS = sorted(path.stem for path in GOLDEN.glob("*.safetensors"))
ERRORS = sorted(path.stem for path in (GOLDEN / "errors").glob("*.json"))


def client_that_gets(status: int, headers: dict[str, str], content: bytes) -> Client:
    transport = httpx.MockTransport(lambda request: httpx.Response(status, headers=headers, content=content))
    return Client("http://golden", transport=transport, max_retries=0)


def read_golden(name: str) -> tuple[dict[str, Any], list[Embedding]]:
    said = json.loads((GOLDEN / f"{name}.json").read_text())
    headers = {"Content-Type": "application/vnd.foveal.safetensors", "X-Request-ID": "golden-1"}
    with client_that_gets(200, headers, (GOLDEN / f"{name}.safetensors").read_bytes()) as client:
        return said, client.encode([b"picture"] * said["usage"]["images"])


def test_the_files_are_what_the_script_writes() -> None:
    made = runpy.run_path(str(FOLDER / "make_golden.py"))["files"]()
    found = {path.relative_to(GOLDEN).as_posix(): path.read_bytes() for path in GOLDEN.rglob("*") if path.is_file()}
    assert found == made


@pytest.mark.parametrize("name", ANSWERS)
def test_values_shapes_and_grids_are_those_that_were_written(name: str) -> None:
    said, embeddings = read_golden(name)
    for place, embedding in enumerate(embeddings):
        assert list(embedding.shape) == said["shapes"][place]
        assert embedding.values.dtype.name == embedding.dtype == said["dtype"]
        assert np.array_equal(embedding.numpy("float32").ravel(), said["values"][place])
        assert list(embedding.grid_thw) == said["grid_thw"][place]


@pytest.mark.parametrize("name", ANSWERS)
def test_model_tokens_hashes_levels_and_usage_travel_with_every_embedding(name: str) -> None:
    said, embeddings = read_golden(name)
    for place, embedding in enumerate(embeddings):
        assert (embedding.model, embedding.request_id) == (said["model"], "golden-1")
        assert (embedding.tokens, embedding.sha256) == (said["tokens"][place], said["sha256"][place])
        assert embedding.key == said["keys"][place]
        assert [level._asdict() for level in embedding.levels] == said["levels"]
        assert embedding.usage._asdict() == said["usage"]


@pytest.mark.parametrize("name", ANSWERS)
def test_a_second_reader_of_safetensors_agrees(name: str) -> None:
    said, embeddings = read_golden(name)
    tensors = dict(safetensors.deserialize((GOLDEN / f"{name}.safetensors").read_bytes()))
    assert np.frombuffer(tensors["grid_thw"]["data"], "<i8").reshape(-1, 3).tolist() == said["grid_thw"]
    for place, embedding in enumerate(embeddings):
        tensor = tensors[f"image.{place}"]
        assert (tensor["shape"], bytes(tensor["data"])) == (list(embedding.shape), embedding.values.tobytes())


def test_what_is_held_has_all_of_an_embedding_but_its_values() -> None:
    said = json.loads((GOLDEN / "two_images_bfloat16.json").read_text())
    headers = {"Content-Type": "application/vnd.foveal.safetensors", "X-Request-ID": "golden-1"}
    with client_that_gets(200, headers, (GOLDEN / "handover" / "held.safetensors").read_bytes()) as client:
        held = client.hold([b"picture"] * 2)
    for place, one in enumerate(held):
        assert (one.model, one.dtype, one.request_id) == (said["model"], said["dtype"], "golden-1")
        assert (one.key, one.sha256, one.tokens) == tuple(said[name][place] for name in ("keys", "sha256", "tokens"))
        assert (list(one.shape), list(one.grid_thw)) == (said["shapes"][place], said["grid_thw"][place])
        assert one.usage._asdict() == said["usage"]


def test_a_second_reader_of_safetensors_finds_the_rows_where_vllm_looks() -> None:
    said = json.loads((GOLDEN / "two_images_bfloat16.json").read_text())
    tensors = dict(safetensors.deserialize((GOLDEN / "handover" / "ec_file.safetensors").read_bytes()))
    rows = np.frombuffer(tensors["ec_cache"]["data"], ml_dtypes.bfloat16).astype(np.float32)
    assert (rows.tolist(), tensors["ec_cache"]["shape"]) == (said["values"][1], said["shapes"][1])
    assert np.frombuffer(tensors["grid_thw"]["data"], "<i8").tolist() == said["grid_thw"][1]


def test_there_is_an_error_body_for_each_code() -> None:
    assert set(BY_CODE) == set(ERRORS)


@pytest.mark.parametrize("code", ERRORS)
def test_an_error_body_becomes_the_class_of_its_code(code: str) -> None:
    golden = json.loads((GOLDEN / "errors" / f"{code}.json").read_text())
    told = golden["body"]["error"]
    with (
        client_that_gets(golden["status"], golden["headers"], json.dumps(golden["body"]).encode()) as client,
        pytest.raises(APIStatusError) as caught,
    ):
        client.encode(b"picture")
    error = caught.value
    assert type(error) is BY_CODE[code]
    assert getattr(foveal_client, type(error).__name__) is type(error)
    assert (error.status, error.code, error.message) == (golden["status"], code, told["message"])
    assert (error.param, error.retryable, error.request_id) == (told["param"], told["retryable"], "golden-1")
    wanted = golden["headers"].get("Retry-After")
    assert error.retry_after == (None if wanted is None else float(wanted))
    assert json.loads(error.body) == golden["body"]
