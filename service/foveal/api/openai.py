"""OpenAI's embeddings shape with images (data-URI, base64, URL) in `input`, pooled."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import orjson

from foveal.api.answers import base64_pieces, number_pieces, usage_of
from foveal.api.intake import images_of, read_object
from foveal.api.options import read_options, wishes_of
from foveal.engine.items import Encoded, Wishes
from foveal.errors import InvalidRequest
from foveal.families.spec import ModelSpec
from foveal.fetch.images import Source
from foveal.fetch.rules import Rules

_IGNORED = ("user", "dimensions")
"""Fields of OpenAI's that every client may send; `dimensions` only with the model's own width."""


@dataclass(frozen=True)
class EmbeddingsRequest:
    """A request taken apart."""

    images: Sequence[Source]
    wishes: Wishes
    as_base64: bool


def read_embeddings_request(body: bytes, spec: ModelSpec, max_images: int, rules: Rules | None) -> EmbeddingsRequest:
    """Images and wishes; raises InvalidRequest, BadBase64, ModelNotFound, TooLarge, UrlForbidden."""
    content = read_object(body)
    items = content.pop("input", None)
    if isinstance(items, str | dict):
        items = [items]
    width = content.get("dimensions")
    if width is not None and width != spec.pooled_width:
        raise InvalidRequest(f"dimensions: {spec.name} gives {spec.pooled_width}, nothing else", param="dimensions")
    options = read_options(
        {"normalize": True, "output": "pooled", "encoding_format": "float"},
        {name: value for name, value in content.items() if name not in _IGNORED},
        {"dtype": "float32"},
    )
    if options.output != "pooled":
        raise InvalidRequest("output: this route gives pooled embeddings; use /encode for tokens", param="output")
    if options.deliver != "answer":
        raise InvalidRequest("deliver: this route only answers; use /encode to have rows held", param="deliver")
    images = images_of(items, "input", max_images, rules)
    return EmbeddingsRequest(images, wishes_of(options, spec), options.encoding_format == "base64")


def write_embeddings(spec: ModelSpec, encoded: Sequence[Encoded], as_base64: bool) -> Iterator[bytes]:
    """The answer in pieces; base64 is of little-endian float32, as OpenAI's clients expect."""
    yield b'{"object":"list","model":' + orjson.dumps(spec.name) + b',"data":['
    for i, e in enumerate(encoded):
        yield (b"," if i else b"") + b'{"object":"embedding","index":%d,"embedding":' % i
        yield from base64_pieces(e.embedding.view.data) if as_base64 else number_pieces(e)
        yield b"}"
    tokens = usage_of(encoded)["tokens"]
    yield b'],"usage":' + orjson.dumps({"prompt_tokens": tokens, "total_tokens": tokens}) + b"}"
