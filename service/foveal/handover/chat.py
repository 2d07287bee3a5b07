"""The pictures of a chat request: where their parts lie in the body. Pure.

The body is not taken apart and written anew: only the bytes of picture parts are replaced, and every other byte, with
its numbers, escapes, unknown fields and blanks, stays as it was sent.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import orjson

from foveal.errors import InvalidRequest
from foveal.handover.marks import has_more_values

MAX_VALUES = 200_000
"""JSON values of one body, prompts not counted as more than one each."""
PREPARING = ("mm_processor_kwargs", "media_io_kwargs")
"""Fields of vLLM that would have pictures prepared otherwise, and that change the key under which it keeps them."""
_KINDS = ("image_url", "input_image")
_EMPTY = (b"", b"null", b"{}")
_ANY_KIND = re.compile(
    "|".join("".join(rf"(?:{c}|\\u00{ord(c):02x})" for c in kind) for kind in _KINDS).encode(), re.IGNORECASE
)
"""What every picture part has in its text, with or without escapes."""


@dataclass(frozen=True)
class ImagePart:
    """One picture: the bytes of its part in the body, its place in words, and its data-URI, base64 or URL."""

    start: int
    stop: int
    path: str
    text: str


class _Message(msgspec.Struct):
    content: msgspec.Raw = msgspec.Raw()


class _Chat(msgspec.Struct):
    messages: list[_Message] = []
    mm_processor_kwargs: msgspec.Raw = msgspec.Raw()
    media_io_kwargs: msgspec.Raw = msgspec.Raw()


class _Named(msgspec.Struct):
    model: object = None


class _Part(msgspec.Struct):
    type: msgspec.Raw = msgspec.Raw()
    image_url: msgspec.Raw = msgspec.Raw()


def find_images(body: bytes) -> list[ImagePart]:
    """The pictures of a chat request's body, in order; none for what holds none.

    Parts that are no pictures are not looked into: text, audio, video, `image_embeds`. A body that is no chat is for
    the LLM server to judge, and so is one that is no strict JSON and can hold no picture: its parser may allow more.
    Raises InvalidRequest for one that might, for more values or depth than are read, and for a picture part without a
    picture: its `uuid` alone would name what another caller sent.
    """
    if has_more_values(body, MAX_VALUES):
        raise InvalidRequest(f"the body has more than {MAX_VALUES} JSON values; send fewer parts or messages")
    try:
        chat = msgspec.json.decode(body, type=_Chat)
        found = list(_images(body, chat.messages))
    except msgspec.ValidationError:
        return []
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        # without zeros, UTF-16 and UTF-32 (which some servers read) show their letters
        if _ANY_KIND.search(body.translate(None, b"\0")) is None:
            return []
        raise InvalidRequest(f"the body is no JSON, so its pictures cannot be found: {_reason(body, error)}") from None
    except RecursionError:
        raise InvalidRequest("the body's JSON is nested too deeply") from None
    for name in PREPARING:
        if found and bytes(getattr(chat, name)).translate(None, b" \t\r\n") not in _EMPTY:
            raise InvalidRequest(f"{name}: pictures are prepared here, not by the LLM server; leave it out", param=name)
    return found


def model_of(body: bytes) -> str | None:
    """The model that a chat request with pictures names; None where it names none."""
    found = msgspec.json.decode(body, type=_Named).model
    return found if isinstance(found, str) else None


def _images(body: bytes, messages: Sequence[_Message]) -> Iterator[ImagePart]:
    for i, message in enumerate(messages):
        for j, raw in enumerate(_items(message.content)):
            if bytes(memoryview(raw)[:1]) != b"{":
                continue
            part = msgspec.json.decode(raw, type=_Part)
            if _is_image(part):
                path = f"messages[{i}].content[{j}]"
                start = _address(raw) - _address(body)
                yield ImagePart(start, start + len(memoryview(raw)), path, _text(part, path))


def _items(raw: msgspec.Raw) -> Sequence[msgspec.Raw]:
    """The items of a JSON list; none of what is no list, which the LLM server may judge."""
    return msgspec.json.decode(raw, type=list[msgspec.Raw]) if bytes(memoryview(raw)[:1]) == b"[" else ()


def _is_image(part: _Part) -> bool:
    """As vLLM decides it: by the type, and where there is none by the field."""
    kind = bytes(part.type)
    if kind in (b"", b"null"):
        return bytes(memoryview(part.image_url)[:5]) not in (b"", b"null")
    return msgspec.json.decode(kind) in _KINDS


def _text(part: _Part, path: str) -> str:
    target = msgspec.json.decode(part.image_url) if memoryview(part.image_url) else None
    text = target.get("url") if isinstance(target, dict) else target
    if not isinstance(text, str) or not text:
        how = '{"type": "image_url", "image_url": {"url": "data:image/png;base64,..."}}'
        raise InvalidRequest(f"a picture part must hold its picture: {how}", param=path)
    return text


def _reason(body: bytes, error: Exception) -> str:
    """What is wrong with it; msgspec takes half of a surrogate pair for the end of the body."""
    try:
        orjson.loads(body)
    except orjson.JSONDecodeError as found:
        return str(found)
    return str(error)


def _address(buffer: bytes | msgspec.Raw) -> int:
    """Where a buffer lies in memory: what msgspec cuts out of a body is a view of it."""
    address: int = np.frombuffer(buffer, np.uint8).__array_interface__["data"][0]
    return address
