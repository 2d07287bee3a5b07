"""From a body to images and options: raw, multipart or JSON, as Content-Type says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import httpx
import orjson

from foveal.api.base64s import image_of_text
from foveal.api.multipart import read_form, too_many_images
from foveal.api.options import Options, read_options
from foveal.errors import FovealError, InvalidRequest, Undecodable, UrlForbidden
from foveal.fetch.images import Source
from foveal.fetch.rules import Rules

MAX_JSON_MARKS = 100_000
"""Quotes, commas and brackets of a JSON body; base64 has none of them."""
Item = TypeVar("Item")
_KINDS = "send image/*, application/octet-stream, multipart/form-data or application/json"


@dataclass(frozen=True)
class Intake:
    """A request's images, as sent or as URL, in order, and its options."""

    images: Sequence[Source]
    options: Options


def read_intake(
    body: bytes, content_type: str, query: Mapping[str, str], max_images: int, rules: Rules | None
) -> Intake:
    """Take the body apart; raises InvalidRequest, BadBase64, TooLarge, UrlForbidden, Undecodable."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind.startswith("image/") or kind in ("application/octet-stream", ""):
        options = read_options(query)
        if not body:
            raise Undecodable("the body is empty: no image was sent", param="images[0]")
        return Intake([body], options)
    if kind == "multipart/form-data":
        form = read_form(body, content_type, max_images)
        files = _some(form.files, max_images)
        return Intake(files, read_options(query, form.fields))
    if kind == "application/json":
        content = read_object(body)
        images = images_of(content.pop("images", None), "images", max_images, rules)
        return Intake(images, read_options(query, content))
    raise InvalidRequest(f"bodies of type {kind[:100]!r} are not read; {_KINDS}")


def read_object(body: bytes) -> dict[str, Any]:
    """A JSON object; raises InvalidRequest."""
    # counted before parsing: a few megabytes of commas would become gigabytes of objects
    if sum(body.count(mark) for mark in b'",[{') > MAX_JSON_MARKS:
        raise InvalidRequest('the body has too many JSON values; send {"images": [...]} and options')
    return parsed_object(body, '{"images": [...]}')


def parsed_object(body: bytes, example: str) -> dict[str, Any]:
    """A JSON object whose values were counted before; raises InvalidRequest, which shows the example."""
    try:
        content = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"the body is no JSON: {error.msg}") from None
    if not isinstance(content, dict):
        raise InvalidRequest(f"the body is no JSON object; send {example}")
    return content


def images_of(items: object, param: str, max_images: int, rules: Rules | None) -> list[Source]:
    """The bytes of each JSON item, or its URL; an error names the item as `param[i]`."""
    if not isinstance(items, list):
        raise InvalidRequest(f"{param} must be a list of images", param=param)
    images: list[Source] = []
    for i, item in enumerate(_some(items, max_images, param)):
        try:
            images.append(source_of_text(_text_of(item), rules))
        except FovealError as error:
            raise error.at(f"{param}[{i}]") from None
    return images


def _some(items: list[Item], max_images: int, param: str = "images") -> list[Item]:
    if not items:
        raise InvalidRequest(f"the request has no image: {param} is empty", param=param)
    if len(items) > max_images:
        raise too_many_images(max_images)
    return items


def source_of_text(text: str, rules: Rules | None) -> bytes | httpx.URL:
    """The bytes behind base64 or a data-URI, else a URL that may be fetched; raises BadBase64, UrlForbidden."""
    scheme, colon, _ = text[:64].partition(":")
    if not colon or scheme.lower() == "data" or "," in scheme:
        return image_of_text(text)
    if rules is None:
        raise UrlForbidden(
            "this server fetches no URLs (--allow-urls is off); send the image as base64, a data-URI or a file"
        )
    return rules.url_of(text)


def _text_of(item: object) -> str:
    """The text of an item, or of what it points at; raises InvalidRequest."""
    if isinstance(item, dict):
        item = _inner(item)
    if not isinstance(item, str):
        raise InvalidRequest('an image is base64 text, a data-URI, {"url": ...}, {"data": ...} or an image_url part')
    return item


def _inner(item: dict[str, Any]) -> object:
    """What an object item points at: OpenAI's image part, {"url": ...} or {"data": ...}; null is as if not there."""
    part = item.get("image_url")
    if part is None and item.get("type") != "image_url":
        return item.get("data") if item.get("url") is None else item["url"]
    return part.get("url") if isinstance(part, dict) else part
