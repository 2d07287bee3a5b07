"""What the OpenAPI document says of bodies that routes read themselves."""

from __future__ import annotations

from typing import Any

from foveal.api.options import Options
from foveal.errors import BY_CODE, FovealError

_IMAGE_ITEM: dict[str, Any] = {
    "oneOf": [
        {"type": "string", "description": "base64 or data-URI"},
        {"type": "object", "properties": {"url": {"type": "string"}}, "required": ["url"]},
        {"type": "object", "properties": {"data": {"type": "string"}}, "required": ["data"]},
        {
            "type": "object",
            "properties": {
                "type": {"const": "image_url"},
                "image_url": {"type": "object", "properties": {"url": {"type": "string"}}, "required": ["url"]},
            },
            "required": ["type", "image_url"],
        },
    ]
}
_OPTIONS: dict[str, Any] = Options.model_json_schema()["properties"]
_BINARY = {"type": "string", "format": "binary"}
_ENCODE_JSON = {
    "type": "object",
    "properties": {"images": {"type": "array", "minItems": 1, "items": _IMAGE_ITEM}, **_OPTIONS},
    "required": ["images"],
    "additionalProperties": False,
}
_ENCODE_FORM = {"type": "object", "properties": {"image": {"type": "array", "items": _BINARY}, **_OPTIONS}}

ENCODE: dict[str, Any] = {
    "summary": "Encode images",
    "parameters": [
        {"name": name, "in": "query", "required": False, "schema": schema, "description": schema.get("description", "")}
        for name, schema in _OPTIONS.items()
    ],
    "requestBody": {
        "required": True,
        "content": {
            "application/octet-stream": {"schema": _BINARY},
            "image/*": {"schema": _BINARY},
            "multipart/form-data": {"schema": _ENCODE_FORM},
            "application/json": {"schema": _ENCODE_JSON},
        },
    },
}
EMBEDDINGS: dict[str, Any] = {
    "summary": "Embeddings in OpenAI's shape",
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "properties": {
                        "model": {"type": "string"},
                        "input": {"oneOf": [_IMAGE_ITEM, {"type": "array", "minItems": 1, "items": _IMAGE_ITEM}]},
                        "encoding_format": {"enum": ["float", "base64"]},
                        "user": {"type": "string"},
                    },
                    "required": ["input"],
                }
            }
        },
    },
}


def _error_answers() -> dict[int | str, dict[str, Any]]:
    codes: dict[int, list[str]] = {}
    for code, error in sorted(BY_CODE.items()):
        codes.setdefault(error.status, []).append(code)
    assert FovealError.status in codes
    return {status: {"description": ", ".join(names)} for status, names in codes.items()}


ERRORS: dict[int | str, dict[str, Any]] = _error_answers()
