"""Writes `golden/`: bytes that both sides of the HTTP contract must agree on. `--check` compares and writes nothing.

Made from the contract alone with struct and json, by neither side's code. Each answer of /encode stands twice: as
`.safetensors`, the bytes of the body, and as `.json`, what they say. A server that writes `.json`'s content must give
these bytes. `handover/` has what is held for an LLM server: the answer of deliver=hold, and the file that is fetched.
"""

from __future__ import annotations

import hashlib
import json
import struct
import sys
from pathlib import Path
from typing import Any

GOLDEN = Path(__file__).parent / "golden"
REQUEST_ID = "golden-1"
ITEM_FORMATS = {"bfloat16": ("BF16", 2), "float32": ("F32", 4)}

# code: (status, type, retryable, message, param, Retry-After)
ERRORS: dict[str, tuple[int, str, bool, str, str | None, str | None]] = {
    "invalid_request": (400, "invalid_request_error", False, "unknown option dtpye", "dtpye", None),
    "bad_base64": (400, "invalid_request_error", False, "this is not base64", "images[0]", None),
    "unauthorized": (401, "invalid_request_error", False, "the key is missing or wrong", None, None),
    "url_forbidden": (403, "invalid_request_error", False, "this address may not be fetched", "images[2]", None),
    "model_not_found": (404, "invalid_request_error", False, "this server has builtin:tiny", "model", None),
    "not_found": (404, "invalid_request_error", False, "there is no such route", None, None),
    "method_not_allowed": (405, "invalid_request_error", False, "use POST", None, None),
    "too_large": (413, "invalid_request_error", False, "over --max-body-bytes", "images[1]", None),
    "unsupported_type": (415, "invalid_request_error", False, "found an SVG", "images[1]", None),
    "undecodable": (422, "invalid_request_error", False, "the JPEG is truncated", "images[1]", None),
    "aspect_ratio": (422, "invalid_request_error", False, "one side is 300 times the other", "images[0]", None),
    "dtype_overflow": (422, "invalid_request_error", False, "larger than float16 holds", "images[0]", None),
    "url_failed": (424, "invalid_request_error", True, "the other server answered 502", "images[0]", None),
    "rate_limited": (429, "overloaded_error", True, "the quota of this key is used up", None, "7"),
    "overloaded": (503, "overloaded_error", True, "the queue is full", None, "2"),
    "draining": (503, "overloaded_error", True, "shutting down", None, None),
    "unavailable": (503, "server_error", True, "no worker is up", None, None),
    "deadline_exceeded": (504, "server_error", True, "the deadline passed in the queue", None, None),
    "internal": (500, "server_error", False, "something went wrong here", None, None),
}


def answers() -> dict[str, dict[str, Any]]:
    """What each golden answer says. Values are exact in every dtype: eighths, of both signs."""
    levels = [{"name": "main", "start": 0, "stop": 4}, {"name": "deepstack_0", "start": 4, "stop": 8}]
    return {
        "two_images_bfloat16": _answer("bfloat16", [[1, 4, 6], [1, 2, 4]], [6, 2], levels, width=8, pooled=False),
        "pooled_float32": _answer("float32", [[1, 14, 14]], [49], [], width=5, pooled=True),
    }


def _answer(
    dtype: str, grids: list[list[int]], tokens: list[int], levels: list[dict[str, Any]], width: int, pooled: bool
) -> dict[str, Any]:
    shapes = [[width] if pooled else [count, width] for count in tokens]
    usage = {"images": len(grids), "patches": sum(t * h * w for t, h, w in grids), "tokens": sum(tokens)}
    return {
        "model": "builtin:golden",
        "dtype": dtype,
        "sha256": [hashlib.sha256(f"picture {place}".encode()).hexdigest() for place in range(len(grids))],
        "keys": [hashlib.sha256(f"key {place}".encode()).hexdigest() for place in range(len(grids))],
        "levels": levels,
        "usage": usage,
        "tokens": tokens,
        "grid_thw": grids,
        "shapes": shapes,
        "values": [_values(place, shape) for place, shape in enumerate(shapes)],
    }


def _values(place: int, shape: list[int]) -> list[float]:
    """Row-major, from -8 up in eighths, and another start for every image."""
    count = shape[0] * (shape[1] if len(shape) == 2 else 1)
    return [((7 * i + 3 * place) % 128 - 64) / 8 for i in range(count)]


def held_of(answer: dict[str, Any]) -> bytes:
    """The body where the rows are held: the same without images, and their shapes in the metadata."""
    grids = struct.pack(f"<{3 * len(answer['grid_thw'])}q", *(n for grid in answer["grid_thw"] for n in grid))
    metadata = {"model": answer["model"], "dtype": answer["dtype"]}
    metadata |= {key: _compact(answer[key]) for key in ("sha256", "keys", "levels", "usage", "tokens", "shapes")}
    entry = {"dtype": "I64", "shape": [len(answer["grid_thw"]), 3], "data_offsets": [0, len(grids)]}
    return _with_header({"__metadata__": metadata, "grid_thw": entry}) + grids


def ec_file_of(answer: dict[str, Any], place: int) -> bytes:
    """One image as `GET /embeddings/KEY` sends it and shared storage holds it: grid_thw, then ec_cache."""
    name_of_dtype, item_bytes = ITEM_FORMATS[answer["dtype"]]
    grid = struct.pack("<3q", *answer["grid_thw"][place])
    rows = _pack(answer["values"][place], item_bytes)
    texts = {
        "model": answer["model"],
        "dtype": answer["dtype"],
        "key": answer["keys"][place],
        "content_key": answer["keys"][place],
        "sha256": answer["sha256"][place],
        "tokens": _compact(answer["tokens"][place]),
        "grid": _compact(answer["grid_thw"][place]),
        "levels": _compact(answer["levels"]),
    }
    header = {
        "__metadata__": texts,
        "grid_thw": {"dtype": "I64", "shape": [1, 3], "data_offsets": [0, 24]},
        "ec_cache": {
            "dtype": name_of_dtype,
            "shape": answer["shapes"][place],
            "data_offsets": [24, 24 + len(rows)],
        },
    }
    return _with_header(header) + grid + rows


def safetensors_of(answer: dict[str, Any]) -> bytes:
    """The body: metadata, grid_thw, image.0, image.1, ...; the header is compact JSON, padded to 8 bytes."""
    name_of_dtype, item_bytes = ITEM_FORMATS[answer["dtype"]]
    parts = [struct.pack(f"<{3 * len(answer['grid_thw'])}q", *(n for grid in answer["grid_thw"] for n in grid))]
    parts += [_pack(values, item_bytes) for values in answer["values"]]
    entries = [("grid_thw", "I64", [len(answer["grid_thw"]), 3])]
    entries += [(f"image.{place}", name_of_dtype, shape) for place, shape in enumerate(answer["shapes"])]
    metadata = {"model": answer["model"], "dtype": answer["dtype"]}
    metadata |= {key: _compact(answer[key]) for key in ("sha256", "keys", "levels", "usage", "tokens")}
    header: dict[str, Any] = {"__metadata__": metadata}
    at = 0
    for (name, dtype, shape), part in zip(entries, parts, strict=True):
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(part)]}
        at += len(part)
    return _with_header(header) + b"".join(parts)


def _with_header(header: dict[str, Any]) -> bytes:
    text = _compact(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def _pack(values: list[float], item_bytes: int) -> bytes:
    """Little-endian. A bfloat16 is the upper half of a float32; these values lose nothing by it."""
    wide = [struct.pack("<f", value) for value in values]
    return b"".join(item[4 - item_bytes :] for item in wide)


def _compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def error_of(code: str) -> dict[str, Any]:
    """One refusal: status, headers and JSON body."""
    status, kind, retryable, message, param, retry_after = ERRORS[code]
    error = {"code": code, "message": message, "type": kind, "param": param, "retryable": retryable}
    headers = {"Content-Type": "application/json", "X-Request-ID": REQUEST_ID}
    if retry_after is not None:
        headers["Retry-After"] = retry_after
    return {"status": status, "headers": headers, "body": {"error": {**error, "request_id": REQUEST_ID}}}


def files() -> dict[str, bytes]:
    """Every golden file, by its path under `golden/`."""
    made: dict[str, bytes] = {}
    for name, answer in answers().items():
        made[f"{name}.json"] = _readable(answer)
        made[f"{name}.safetensors"] = safetensors_of(answer)
    tokens = answers()["two_images_bfloat16"]
    made["handover/held.safetensors"] = held_of(tokens)
    made["handover/ec_file.safetensors"] = ec_file_of(tokens, 1)
    for code in ERRORS:
        made[f"errors/{code}.json"] = _readable(error_of(code))
    return made


def _readable(value: object) -> bytes:
    return (json.dumps(value, indent=1) + "\n").encode()


def main() -> int:
    """Write the files, or with `--check` say which differ."""
    wrong = 0
    for name, content in files().items():
        path = GOLDEN / name
        if sys.argv[1:] == ["--check"]:
            if not path.exists() or path.read_bytes() != content:
                wrong += 1
                print(f"{name} differs")
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
