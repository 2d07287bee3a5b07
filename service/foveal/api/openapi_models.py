"""What the OpenAPI document says of the routes that list models, as OpenAI does."""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]

_MODEL: Schema = {
    "type": "object",
    "properties": {
        "id": {"type": "string"},
        "object": {"const": "model"},
        "created": {"type": "integer", "minimum": 0},
        "owned_by": {"type": "string"},
    },
    "required": ["id", "object", "created", "owned_by"],
}


def _answered(schema: Schema) -> Schema:
    return {"200": {"description": "OpenAI's object", "content": {"application/json": {"schema": schema}}}}


MODEL: Schema = {
    "summary": "One model, in OpenAI's shape",
    "parameters": [
        {
            "name": "model",
            "in": "path",
            "required": True,
            "schema": {"type": "string", "minLength": 1},
            "description": "the name as /v1/models lists it; slashes may stand in it as they are or as %2F",
        }
    ],
    "responses": _answered(_MODEL),
}
