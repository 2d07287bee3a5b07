"""What the OpenAPI document says of bodies that routes read themselves, and of what they answer."""

from __future__ import annotations

from typing import Any

from foveal.api.options import Options
from foveal.errors import BY_CODE, FovealError

Schema = dict[str, Any]

_BOUNDS = {"ge": "minimum", "le": "maximum"}


def _in_standard_words(schema: Any) -> Any:
    """Bounds under the names of JSON Schema, where a check of our own hides them from pydantic."""
    if isinstance(schema, dict):
        return {_BOUNDS.get(key, key): _in_standard_words(value) for key, value in schema.items()}
    return [_in_standard_words(value) for value in schema] if isinstance(schema, list) else schema


def _as_text(schema: Schema) -> Schema:
    """An option as query parameter or form field, which cannot be null."""
    kinds = [kind for kind in schema.get("anyOf", ()) if kind != {"type": "null"}]
    outside = {key: value for key, value in schema.items() if key != "anyOf"}
    return outside | kinds[0] if kinds else schema


def _or_null(schema: Schema) -> Schema:
    """An option in JSON: null is as if it were not there."""
    outside: Schema = {key: schema[key] for key in ("title", "description", "default") if key in schema}
    kind = {key: value for key, value in schema.items() if key not in outside}
    return {"anyOf": [*kind.get("anyOf", [kind]), {"type": "null"}], **outside}


_OPTIONS: Schema = _in_standard_words(Options.model_json_schema()["properties"])
_TEXT_OPTIONS: Schema = {name: _as_text(schema) for name, schema in _OPTIONS.items()}
_JSON_OPTIONS: Schema = {name: _or_null(_TEXT_OPTIONS[name]) for name in _OPTIONS}
_BINARY: Schema = {"type": "string", "format": "binary"}
_NUMBER: Schema = {"type": "integer", "minimum": 0}
_KEY: Schema = {"type": "string", "pattern": "^[0-9a-f]{64}$"}


def _object(required: Schema, **more: Any) -> Schema:
    """An object all of whose properties are there."""
    return {"type": "object", "properties": required, "required": list(required), **more}


def _list(items: Schema, **more: Any) -> Schema:
    return {"type": "array", "items": items, **more}


_IMAGE_URL: Schema = {"anyOf": [{"type": "string"}, _object({"url": {"type": "string"}})]}
_IMAGE_ITEM: Schema = {
    "anyOf": [
        {"type": "string", "description": "base64, a data-URI, or a URL where the server fetches those"},
        _object({"url": {"type": "string"}}),
        _object({"data": {"type": "string"}}),
        {
            "type": "object",
            "properties": {"type": {"const": "image_url"}, "image_url": _IMAGE_URL},
            "required": ["image_url"],
        },
    ]
}
_ENCODE_JSON = {
    "type": "object",
    "properties": {"images": _list(_IMAGE_ITEM, minItems=1), **_JSON_OPTIONS},
    "required": ["images"],
    "additionalProperties": False,
}
_ENCODE_FORM = {"type": "object", "properties": {"image": _list(_BINARY), **_TEXT_OPTIONS}}
_ERROR = _object(
    {
        "error": _object(
            {
                "code": {"enum": sorted(BY_CODE)},
                "message": {"type": "string"},
                "type": {"enum": sorted({error.type for error in BY_CODE.values()})},
                "param": {"type": ["string", "null"]},
                "retryable": {"type": "boolean"},
                "request_id": {"type": "string"},
            }
        )
    }
)


def _embeddings(forms: str, usage: Schema, **more: Schema) -> Schema:
    """What both routes answer: a list of embeddings, in these forms, and what they took."""
    item = {
        "object": {"const": "embedding"},
        "index": _NUMBER,
        "embedding": {"type": ["string", "array", "null"], "description": forms},
        **more,
    }
    return _object(
        {
            "object": {"const": "list"},
            "model": {"type": "string"},
            "data": _list(_object(item)),
            "usage": _object(usage),
        }
    )


_ENCODED = _embeddings(
    "base64, or numbers; null where the rows are held (deliver=hold)",
    {"images": _NUMBER, "patches": _NUMBER, "tokens": _NUMBER},
    shape=_list(_NUMBER),
    dtype={"enum": ["bfloat16", "float16", "float32"]},
    grid_thw=_list(_NUMBER, minItems=3, maxItems=3),
    tokens=_NUMBER,
    image_size=_list(_NUMBER, minItems=2, maxItems=2),
    sha256=_KEY,
    key=_KEY,
    cached={"type": "boolean"},
)
_OPENAI_LIST = _embeddings("numbers, or base64", {"prompt_tokens": _NUMBER, "total_tokens": _NUMBER})


def _answered(schema: Schema, *binary: str) -> Schema:
    content = {"application/json": {"schema": schema}} | {kind: {"schema": _BINARY} for kind in binary}
    return {"200": {"description": "The embeddings", "content": content}}


ENCODE: Schema = {
    "summary": "Encode images",
    "parameters": [
        {"name": name, "in": "query", "required": False, "schema": schema, "description": schema.get("description", "")}
        for name, schema in _TEXT_OPTIONS.items()
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
    "responses": _answered(_ENCODED, "application/vnd.foveal.safetensors"),
}
EMBEDDINGS: Schema = {
    "summary": "Embeddings in OpenAI's shape",
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "properties": {
                        **_JSON_OPTIONS,
                        "input": {"anyOf": [_IMAGE_ITEM, _list(_IMAGE_ITEM, minItems=1)]},
                        "dimensions": {
                            "type": ["integer", "null"],
                            "description": "the model's own width, or left out",
                        },
                        "user": {"type": ["string", "null"]},
                    },
                    "required": ["input"],
                    "additionalProperties": False,
                }
            }
        },
    },
    "responses": _answered(_OPENAI_LIST),
}


FETCH: Schema = {
    "summary": "Fetch an embedding that is held, as a safetensors file with the tensor ec_cache",
    "parameters": [{"name": "key", "in": "path", "required": True, "schema": _KEY}],
    "responses": {
        "200": {"description": "The file", "content": {"application/vnd.foveal.safetensors": {"schema": _BINARY}}}
    },
}
_CHAT_PART: Schema = _object({"type": {"const": "image_url"}, "image_url": _IMAGE_URL})
_HELD: Schema = _object(
    {
        "modality": {"const": "image"},
        "item_indices": _list(_NUMBER, minItems=1),
        "metadata": _object({"image_grid_thw": _list(_NUMBER, minItems=3, maxItems=3)}),
        "content_key": _KEY,
    }
)
ENCODER_CHAT: Schema = {
    "summary": "Hold the embeddings of a chat's pictures for an LLM server (the encoder of a vLLM-style proxy)",
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "properties": {
                        "model": {"type": ["string", "null"]},
                        "priority": {"type": ["integer", "null"], "description": "smaller first, as in vLLM"},
                        "messages": _list(
                            {
                                "type": "object",
                                "properties": {"role": {"type": "string"}, "content": _list(_CHAT_PART, minItems=1)},
                                "required": ["role", "content"],
                            },
                            minItems=1,
                        ),
                    },
                    "required": ["messages"],
                }
            }
        },
    },
    "responses": {
        "200": {
            "description": "An empty completion; ec_transfer_params names what is held",
            "content": {
                "application/json": {
                    "schema": _object(
                        {
                            "id": {"type": "string"},
                            "object": {"const": "chat.completion"},
                            "created": _NUMBER,
                            "model": {"type": "string"},
                            "choices": _list({"type": "object"}, minItems=1, maxItems=1),
                            "usage": {"type": "object"},
                            "ec_transfer_params": {"type": "object", "additionalProperties": _HELD},
                        }
                    )
                }
            },
        }
    },
}


def _error_answers() -> dict[int | str, Schema]:
    codes: dict[int, list[str]] = {}
    for code, error in sorted(BY_CODE.items()):
        codes.setdefault(error.status, []).append(code)
    assert FovealError.status in codes
    content = {"application/json": {"schema": _ERROR}}
    return {status: {"description": ", ".join(names), "content": content} for status, names in codes.items()}


ERRORS: dict[int | str, Schema] = _error_answers()
